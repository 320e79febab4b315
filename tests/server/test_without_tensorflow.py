"""Only processes that compute with TensorFlow load it, and none loads the compiler of numba."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes import Processes, wait_until
from support.service import RLX_SERVER, Service, write_service_config
from support.trainee import Training


def libraries(pid: int) -> set[str]:
    """Paths of the compiled libraries that a process has loaded."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {path for line in lines if (path := line.partition("/")[2]) and ".so" in path}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see what is loaded")
def test_processes_on_host_engine_load_no_tensorflow_or_llvm(processes: Processes, tmp_path: Path) -> None:
    service = Service(processes, tmp_path, lstm=True)
    training = Training(service.address)
    wait_until(lambda: service.status.updates > 10, "training has started")
    wait_until(lambda: list((tmp_path / "metrics").glob("events.*")), "metrics are written")
    (worker,) = service.rlx_server.children()
    loaded = {pid: libraries(pid) for pid in (service.parameter_server.pid, service.rlx_server.pid, worker.pid)}
    training.stop()
    assert all(loaded.values())
    large = "tensorflow", "/scipy/", "/numba/", "/llvmlite/"
    assert not [path for paths in loaded.values() for path in paths if any(name in path for name in large)]
    assert not loaded[worker.pid] - loaded[service.rlx_server.pid], (
        "a worker loads no library that its server has not loaded"
    )


def test_servers_do_not_import_tensorflow(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('TensorFlow was imported')\n")
    service = Service(processes, tmp_path, env={"PYTHONPATH": str(tmp_path)}, optimizer="worker_rms_prop")
    training = Training(service.address)
    wait_until(lambda: service.status.updates > 10, "training has started")
    training.stop()


def test_server_loads_tensorflow_for_workers_on_a_gpu(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("print('loading')\nimport time\ntime.sleep(600)\n")
    config = write_service_config(tmp_path, gpu=True)
    server = processes.start(*RLX_SERVER, "--config", config, env={"PYTHONPATH": str(tmp_path)})
    server.wait_for_line("loading")
