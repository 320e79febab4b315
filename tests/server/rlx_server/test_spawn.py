"""Workers that are fresh processes: what they are given, and what the server keeps to itself.

That they end as forked ones do is in `test_end.py`, in its slow set.
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

SECRET = "a-word-that-nobody-else-may-see"

LIBRARY = "_sqlite3"

Server = tuple[Running, str]
CHECKS = pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/hosting", "relaax/rlx")


@pytest.fixture(scope="module")
def spawning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests here."""
    folder = tmp_path_factory.mktemp("spawning")
    algorithm = {"path": written(folder), "colour": SECRET}
    with Processes(folder) as processes:
        yield start_offline_server(processes, folder, worker_start="spawn", heartbeat=0.2, algorithm=algorithm)


def written(folder: Path, more: str = "") -> str:
    """The algorithm of these tests, with a library that no server has by itself; `more` is done at its import."""
    return str(write_package(folder, f"import sqlite3\n{more}"))


def mapped(process: psutil.Process) -> str:
    """The libraries of a process."""
    return " ".join(region.path for region in process.memory_maps())


def test_a_worker_serves_and_the_servers_own_process_stays_small(spawning: Server) -> None:
    server, address = spawning
    with Line(address) as line:
        line.open(action_space=rlx.Discrete(2**31))
        worker = line.init(PROCESS_ID)
        (child,) = server.children()
        assert child.pid == worker
        for process in (child, psutil.Process(server.pid)):
            assert SECRET not in " ".join(process.cmdline() + list(process.environ().values()))
        assert LIBRARY in mapped(child)
        assert LIBRARY not in mapped(psutil.Process(server.pid))
        line.say(rlx.Bye())
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")
    assert "Traceback" not in server.stderr


@pytest.mark.slow
@CHECKS
def test_an_algorithm_may_take_longer_to_import_than_clients_have_for_their_hello(
    processes: Processes, tmp_path: Path
) -> None:
    algorithm = {"path": written(tmp_path, "time.sleep(1.2)")}
    _, address = start_offline_server(
        processes, tmp_path, worker_start="spawn", handshake_timeout=1.0, heartbeat=0.2, algorithm=algorithm
    )
    with Line(address) as line:
        line.open()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to list descriptors")
def test_a_worker_inherits_its_own_connection_alone(spawning: Server) -> None:
    server, address = spawning
    with Line(address) as first, Line(address) as second:
        for line in (first, second):
            line.say(make_hello())
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
                        assert flags & os.O_CLOEXEC, "what the worker starts does not inherit it in turn"


@pytest.mark.slow
@CHECKS
def test_spaces_are_refused_with_the_algorithms_sentence(spawning: Server) -> None:
    _, address = spawning
    with Line(address) as line:
        line.say(make_hello(observation_space=rlx.Discrete(3)))
        error = line.expect(rlx.Error)
        assert (error.code, error.retryable) == (ErrorCode.UNSUPPORTED_SPACE, False)
        assert "Discrete(3)" in error.message


@pytest.mark.slow
@CHECKS
def test_a_worker_that_crashes_is_told_by_the_server(spawning: Server) -> None:
    server, address = spawning
    with Line(address) as line:
        line.open()
        line.say(rlx.Init(line.observation(CRASH)))
        assert isinstance(line.hear(), rlx.ConnectionClosed)
    wait_until(lambda: "SIGKILL" in server.stderr, "the server says how the worker ended")


@pytest.mark.slow
@CHECKS
def test_there_is_no_room(processes: Processes, tmp_path: Path) -> None:
    """Over TLS it takes a worker to say so."""
    algorithm, keys = {"path": written(tmp_path)}, Keys(tmp_path / "keys")
    server, address = start_offline_server(
        processes, tmp_path, worker_start="spawn", memory_reserve=1e9, algorithm=algorithm, **keys.rlx_port()
    )
    with Line(address, tls=keys.context()) as line:
        line.say(make_hello(token=keys.token))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.OVERLOADED
        assert "stay reserved" in error.message
        (worker,) = server.children()
        assert LIBRARY not in mapped(worker), "what is refused for want of memory takes little of it"


@pytest.mark.slow
@CHECKS
def test_the_end_of_training_ends_the_server(processes: Processes, tmp_path: Path) -> None:
    server, address = start_offline_server(processes, tmp_path, worker_start="spawn")
    with Line(address) as line:
        line.open()
        line.say(rlx.Init(line.observation(FINISH)))
        line.expect(rlx.TrainingFinished)
        line.expect_end()
    assert server.wait(60) == 0


@pytest.mark.slow
@CHECKS
@pytest.mark.parametrize(
    ("algorithm", "settings", "said"),
    [
        ({"color": "red"}, {}, ["algorithm", "'color'", "'colour'"]),
        ({}, {"device": "gpu:99"}, ["relaax-rlx-server.device: gpu:99", "finds", "cpu"]),
    ],
    ids=["unknown key of the algorithm", "no such device"],
)
def test_a_configuration_that_workers_cannot_use(
    processes: Processes, tmp_path: Path, algorithm: dict[str, object], settings: dict[str, object], said: list[str]
) -> None:
    config = write_config(tmp_path, algorithm, worker_start="spawn", **settings)
    server = processes.start(*RLX_SERVER, "--config", config)
    assert server.wait(120) == 2, server.report()
    (sentence,) = (line for line in server.stderr.splitlines() if line.startswith("relaax-rlx-server: "))
    for word in said:
        assert word in sentence
    assert "Traceback" not in server.stderr


@pytest.mark.slow
@CHECKS
def test_an_algorithm_that_cannot_be_imported(processes: Processes, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(f"{ALGORITHM.read_text()}\nraise RuntimeError('as it was written')\n")
    server = processes.start(
        *RLX_SERVER, "--config", write_config(tmp_path, {"path": str(broken)}, worker_start="spawn")
    )
    assert server.wait(120) == 2, server.report()
    (sentence,) = server.stderr.splitlines()
    assert sentence.startswith(f"relaax-rlx-server: {broken}, line ")
    assert sentence.endswith("the algorithm cannot be imported: RuntimeError: as it was written")
    assert not server.children()


@pytest.mark.slow
@CHECKS
def test_a_server_that_is_stopped_while_a_worker_starts(processes: Processes, tmp_path: Path) -> None:
    server, address = start_offline_server(processes, tmp_path, worker_start="spawn")
    with Line(address) as line:
        line.say(make_hello())
        wait_until(server.children, "the worker is there")
        server.interrupt_group()
        assert server.wait(60) == 130
    assert not server.children()
    assert "KeyboardInterrupt" not in server.stderr
