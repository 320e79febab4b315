"""Tests of spawned workers: what they inherit, and what stays in the server.

How they end is tested in `test_end.py`, in its slow set.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from relaax import rlx
from relaax.rlx import ErrorCode
from support.keys import Keys
from support.offline import ALGORITHM, start_offline_server, write_config, write_package
from support.offline_algorithm import CRASH, FINISH, PROCESS_ID
from support.processes import Processes, Running, wait_until
from support.rlx_line import Line
from support.rlx_pair import make_hello
from support.service import RLX_SERVER

SECRET = "a-secret-of-the-configuration"

LIBRARY = "_sqlite3"

Server = tuple[Running, str]
CHECKS = pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/hosting", "relaax/rlx")


@pytest.fixture(scope="module")
def spawn_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start one server for the tests of this module."""
    folder = tmp_path_factory.mktemp("spawn")
    algorithm = {"path": write_algorithm(folder), "colour": SECRET}
    with Processes(folder) as processes:
        yield start_offline_server(processes, folder, worker_start="spawn", heartbeat=0.2, algorithm=algorithm)


def write_algorithm(folder: Path, statement: str = "") -> str:
    """Write an algorithm that imports a library unused by the server and runs `statement` at its import."""
    return str(write_package(folder, f"import sqlite3\n{statement}"))


def library_paths(process: psutil.Process) -> str:
    """Return the paths of the files that a process has mapped."""
    return " ".join(region.path for region in process.memory_maps())


def test_spawned_worker_serves_and_the_server_stays_small(spawn_server: Server) -> None:
    server, address = spawn_server
    with Line(address) as line:
        line.open(action_space=rlx.Discrete(2**31))
        worker = line.init(PROCESS_ID)
        (child,) = server.children()
        assert child.pid == worker
        for process in (child, psutil.Process(server.pid)):
            assert SECRET not in " ".join(process.cmdline() + list(process.environ().values()))
        assert LIBRARY in library_paths(child)
        assert LIBRARY not in library_paths(psutil.Process(server.pid))
        line.send(rlx.Bye())
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")
    assert "Traceback" not in server.stderr


@pytest.mark.slow
@CHECKS
def test_import_longer_than_the_handshake_timeout_is_allowed(processes: Processes, tmp_path: Path) -> None:
    algorithm = {"path": write_algorithm(tmp_path, "time.sleep(1.2)")}
    _, address = start_offline_server(
        processes, tmp_path, worker_start="spawn", handshake_timeout=1.0, heartbeat=0.2, algorithm=algorithm
    )
    with Line(address) as line:
        line.open()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to list descriptors")
def test_spawned_worker_inherits_only_its_own_connection(spawn_server: Server) -> None:
    server, address = spawn_server
    with Line(address) as first, Line(address) as second:
        for line in (first, second):
            line.send(make_hello())
        for line in (first, second):
            line.expect(rlx.Welcome)
        assert len(server.children()) == 2
        for worker in server.children():
            (connection,) = worker.net_connections()
            assert connection.status == psutil.CONN_ESTABLISHED
            for link in Path(f"/proc/{worker.pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                    if link.readlink().name.startswith(("socket:", "pipe:")) and int(link.name) > 2:
                        info = Path(f"/proc/{worker.pid}/fdinfo/{link.name}").read_text()
                        flags = int(info.split("flags:")[1].split()[0], 8)
                        assert flags & os.O_CLOEXEC, "children of the worker do not inherit it"


@pytest.mark.slow
@CHECKS
def test_unsupported_spaces_are_refused_with_the_reason(spawn_server: Server) -> None:
    _, address = spawn_server
    with Line(address) as line:
        line.send(make_hello(observation_space=rlx.Discrete(3)))
        error = line.expect(rlx.Error)
        assert (error.code, error.retryable) == (ErrorCode.UNSUPPORTED_SPACE, False)
        assert "Discrete(3)" in error.message


@pytest.mark.slow
@CHECKS
def test_crashed_worker_is_logged_with_its_signal(spawn_server: Server) -> None:
    server, address = spawn_server
    with Line(address) as line:
        line.open()
        line.send(rlx.Init(line.observation(CRASH)))
        assert isinstance(line.receive(), rlx.ConnectionClosed)
    wait_until(lambda: "SIGKILL" in server.stderr, "the server logs how the worker ended")


@pytest.mark.slow
@CHECKS
def test_spawned_worker_refuses_if_memory_is_short(processes: Processes, tmp_path: Path) -> None:
    """Over TLS, a worker sends the refusal."""
    algorithm, keys = {"path": write_algorithm(tmp_path)}, Keys(tmp_path / "keys")
    server, address = start_offline_server(
        processes, tmp_path, worker_start="spawn", memory_reserve=1e9, algorithm=algorithm, **keys.rlx_port()
    )
    with Line(address, tls=keys.context()) as line:
        line.send(make_hello(token=keys.token))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.OVERLOADED
        assert "stay reserved" in error.message
        (worker,) = server.children()
        assert LIBRARY not in library_paths(worker), "a refusing worker does not import the algorithm"


@pytest.mark.slow
@CHECKS
def test_end_of_training_ends_the_server(processes: Processes, tmp_path: Path) -> None:
    server, address = start_offline_server(processes, tmp_path, worker_start="spawn")
    with Line(address) as line:
        line.open()
        line.send(rlx.Init(line.observation(FINISH)))
        line.expect(rlx.TrainingFinished)
        line.expect_end()
    assert server.wait(60) == 0


@pytest.mark.slow
@CHECKS
@pytest.mark.parametrize(
    ("algorithm", "settings", "expected_words"),
    [
        ({"color": "red"}, {}, ["algorithm", "'color'", "'colour'"]),
        ({}, {"device": "gpu:99"}, ["relaax-rlx-server.device: gpu:99", "finds", "cpu"]),
    ],
    ids=["unknown key of the algorithm", "no such device"],
)
def test_unusable_configuration_is_refused_at_the_start(
    processes: Processes,
    tmp_path: Path,
    algorithm: dict[str, object],
    settings: dict[str, object],
    expected_words: list[str],
) -> None:
    config = write_config(tmp_path, algorithm, worker_start="spawn", **settings)
    server = processes.start(*RLX_SERVER, "--config", config)
    assert server.wait(120) == 2, server.report()
    (sentence,) = (line for line in server.stderr.splitlines() if line.startswith("relaax-rlx-server: "))
    for word in expected_words:
        assert word in sentence
    assert "Traceback" not in server.stderr


@pytest.mark.slow
@CHECKS
def test_algorithm_that_fails_at_import_is_refused(processes: Processes, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(f"{ALGORITHM.read_text()}\nraise RuntimeError('invalid module')\n")
    server = processes.start(
        *RLX_SERVER, "--config", write_config(tmp_path, {"path": str(broken)}, worker_start="spawn")
    )
    assert server.wait(120) == 2, server.report()
    (sentence,) = server.stderr.splitlines()
    assert sentence.startswith(f"relaax-rlx-server: {broken}, line ")
    assert sentence.endswith("the algorithm cannot be imported: RuntimeError: invalid module")
    assert not server.children()


@pytest.mark.slow
@CHECKS
def test_server_stopped_while_a_worker_starts_leaves_no_process(processes: Processes, tmp_path: Path) -> None:
    server, address = start_offline_server(processes, tmp_path, worker_start="spawn")
    with Line(address) as line:
        line.send(make_hello())
        wait_until(server.children, "a worker process exists")
        server.interrupt_group()
        assert server.wait(60) == 130
    assert not server.children()
    assert "KeyboardInterrupt" not in server.stderr
