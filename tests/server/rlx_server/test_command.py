"""Tests of the command line of relaax-rlx-server: options, and errors in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relaax.server.address import listen, name_of
from support.offline import ALGORITHM, start_offline_server, write_config
from support.processes import Processes
from support.rlx_line import Line

COMMAND = (sys.executable, "-m", "relaax.server.rlx_server.main")


def refused(processes: Processes, *arguments: str | Path) -> str:
    """Run the command, check that it exits with code 2, and return its one error line."""
    server = processes.start(*COMMAND, *arguments)
    assert server.wait(120) == 2, server.report()
    assert server.lines == []
    assert "Traceback" not in server.stderr
    lines = [line for line in server.stderr.splitlines() if line.startswith("relaax-rlx-server: ")]
    assert len(lines) == 1, server.stderr
    return lines[0]


def test_port_in_use_is_refused_with_the_way_out(processes: Processes, tmp_path: Path) -> None:
    with listen("127.0.0.1:0") as taken:
        sentence = refused(processes, "--config", write_config(tmp_path), "--bind", name_of(taken))
        assert name_of(taken) in sentence
        assert "another port" in sentence


def test_public_address_without_authentication_is_refused(processes: Processes, tmp_path: Path) -> None:
    sentence = refused(processes, "--config", write_config(tmp_path), "--bind", "0.0.0.0:0")
    assert "0.0.0.0:0" in sentence
    assert "--allow-anonymous" in sentence


def test_public_address_is_served_with_allow_anonymous(processes: Processes, tmp_path: Path) -> None:
    _, address = start_offline_server(processes, tmp_path, "--bind", "0.0.0.0:0", "--allow-anonymous")
    with Line(address) as line:
        line.open()


@pytest.mark.parametrize(
    ("settings", "expected_words"),
    [
        ({"hartbeat": 3}, ["hartbeat", "'heartbeat'"]),
        ({"heartbeat": -1}, ["heartbeat", "-1"]),
        ({"bind": "localhost"}, ["bind", "'localhost'", "HOST:PORT"]),
        ({"algorithm": {"color": "red"}}, ["algorithm", "'color'", "'colour'"]),
        ({"algorithm": {"path": "da4c"}}, ["da4c", "da3c"]),
        ({"device": "gpu:99"}, ["relaax-rlx-server.device: gpu:99", "finds", "cpu"]),
        ({"device": "tpu"}, ["device", "'tpu'", "cpu, gpu"]),
    ],
    ids=[
        "unknown key",
        "impossible value",
        "no address",
        "unknown key of the algorithm",
        "no such algorithm",
        "no such device",
        "no device",
    ],
)
def test_unusable_configuration_is_refused_by_key_and_value(
    processes: Processes, tmp_path: Path, settings: dict[str, object], expected_words: list[str]
) -> None:
    sentence = refused(processes, "--config", write_config(tmp_path, **settings))  # type: ignore[arg-type]
    for word in expected_words:
        assert word in sentence


def test_missing_configuration_file_is_named(processes: Processes, tmp_path: Path) -> None:
    assert "missing.yaml" in refused(processes, "--config", tmp_path / "missing.yaml")


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/hosting")
@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_missing_device_of_algorithm_gpu_is_refused(processes: Processes, tmp_path: Path) -> None:
    sentence = refused(processes, "--config", write_config(tmp_path, {"gpu": True}))
    assert "relaax-rlx-server.device (by algorithm.gpu): gpu was asked for" in sentence


def test_device_option_overrides_algorithm_gpu(processes: Processes, tmp_path: Path) -> None:
    _, address = start_offline_server(processes, tmp_path, "--device", "cpu", algorithm={"gpu": True}, device="gpu:99")
    with Line(address) as line:
        line.open()


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/hosting")
def test_algorithm_that_runs_an_operation_at_import_is_refused(processes: Processes, tmp_path: Path) -> None:
    """TensorFlow then has threads, and a forked worker could hang."""
    algorithm = tmp_path / "hasty.py"
    algorithm.write_text(
        f"import tensorflow as tf\n{ALGORITHM.read_text()}\nONE = tf.constant(1.0) + 1.0\n".replace(
            "from __future__ import annotations\n", ""
        )
    )
    sentence = refused(processes, "--config", write_config(tmp_path, {"path": str(algorithm)}))
    assert "hasty.py" in sentence
    assert "imported" in sentence


def test_command_line_option_overrides_the_file(processes: Processes, tmp_path: Path) -> None:
    options = ("--timeout", "0.5", "--set", "rlx-server.idle_timeout=77")
    _, address = start_offline_server(processes, tmp_path, *options, timeout=3.0, idle_timeout=5)
    with Line(address) as line:
        assert line.open().limits.idle_timeout_seconds == 77


def test_help_lists_the_options(processes: Processes) -> None:
    command = processes.start(*COMMAND, "--help")
    assert command.wait() == 0
    text = "\n".join(command.lines)
    for option in ("--config", "--bind", "--parameter-server", "--log-level", "--timeout", "--device"):
        assert option in text


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/hosting")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to see a process's environment")
def test_blas_kernels_follow_the_environment_unless_native(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    for name, options in (("asked", ()), ("native", ("--set", "rlx-server.blas_kernels=native"))):
        (folder := tmp_path / name).mkdir()
        server, address = start_offline_server(processes, folder, *options)
        with Line(address) as line:
            line.open()
        environment = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
        assert (b"OPENBLAS_CORETYPE=Haswell" in environment) == (name == "asked")
        assert "OPENBLAS_CORETYPE is Haswell" in server.stderr
        assert ("the process restarts" in server.stderr) == (name == "native"), server.stderr
