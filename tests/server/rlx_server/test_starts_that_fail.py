"""Starting workers where the system cannot, or something hangs: nothing is left behind, and nobody waits for ever."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from relaax.algorithm_base import load_algorithm
from relaax.configuration import RlxServerSection
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.temporary_folders import WorkerFolders
from relaax.server.rlx_server.workers import spawners
from relaax.server.rlx_server.workers.plan import WorkerPlan
from relaax.server.rlx_server.workers.spawners import COMMAND, ForkSpawner, SpawnSpawner
from support.offline import ALGORITHM, SERVER, write_config, write_package
from support.offline_client import OfflineClient
from support.processes import Processes, Running, wait_until
from support.run import is_alive

HANGING = """

import pathlib, time

pathlib.Path({there!r}).touch()
while True:
    time.sleep(0.1)
"""


def descriptors() -> set[str]:
    """Of this process. Some may go meanwhile: gRPC's threads close those of earlier tests in their own time."""
    return set(os.listdir("/dev/fd"))


@pytest.fixture
def folders() -> Iterator[WorkerFolders]:
    made = WorkerFolders()
    yield made
    made.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for sock in pair:
        sock.close()


def test_a_fork_that_fails_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, folders: WorkerFolders, ends: tuple[socket.socket, socket.socket]
) -> None:
    def fail() -> int:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(spawners, "_require_one_thread", lambda _: None)
    monkeypatch.setattr(spawners.gc, "freeze", lambda: None)
    algorithm = load_algorithm(str(ALGORITHM), ALGORITHM.parent)
    plan = WorkerPlan(
        RlxServerSection(), algorithm, algorithm.configure({"path": str(ALGORITHM)}), "cpu", OfflineClient
    )
    forks = ForkSpawner(plan, folders, METERS)
    monkeypatch.setattr(os, "fork", fail)
    folders.ensure()  # which has a lock
    before = descriptors()
    with pytest.raises(OSError, match="no more processes"):
        forks.spawn(ends[0], None, False, lambda: None)
    assert descriptors() <= before
    forks.stop_workers()
    os.close(forks._lifeline.read)


METERS = Meters(1, 1)


def spawns(folders: WorkerFolders, section: dict[str, str] | None = None) -> SpawnSpawner:
    return SpawnSpawner(RlxServerSection(), section or {}, str(ALGORITHM), ALGORITHM.parent, folders, METERS)


@pytest.mark.parametrize("free", range(6))
def test_a_spawn_without_descriptors_leaves_none(
    monkeypatch: pytest.MonkeyPatch, folders: WorkerFolders, ends: tuple[socket.socket, socket.socket], free: int
) -> None:
    monkeypatch.setattr(SpawnSpawner, "_check_start", lambda _: None)
    monkeypatch.setattr(spawners, "COMMAND", ("/there/is/no/such/program",))
    started = spawns(folders)
    folders.ensure()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    highest = max(map(int, before))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
        try:
            while True:
                taken.append(os.dup(ends[1].fileno()))
        except OSError:
            for descriptor in taken[len(taken) - free :]:
                os.close(descriptor)
            del taken[len(taken) - free :]
        with pytest.raises(OSError):
            started.spawn(ends[0], None, False, lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)
    assert descriptors() <= before
    started.stop_workers()
    os.close(started._lifeline.read)


# Reads its orders once its lifeline was cut, and says how many bytes they were.
LATE = """
import os, sys
connection, lifeline, reports, _, orders = map(int, sys.argv[-5:])
if connection >= 0:
    os.read(lifeline, 1)
    with os.fdopen(orders, "rb") as file:
        os.write(reports, str(len(file.read())).encode())
"""


@pytest.mark.timeout(60)
def test_nobody_waits_for_long_orders_to_be_read(
    monkeypatch: pytest.MonkeyPatch, folders: WorkerFolders, ends: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr(spawners, "COMMAND", (sys.executable, "-c", LATE))
    started = spawns(folders, {"colour": "x" * 2**20})
    pid, reports = started.spawn(ends[0], None, False, lambda: None)
    started.stop_workers()
    os.set_blocking(reports, True)
    with os.fdopen(reports, "rb") as said:
        assert int(said.read()) > 2**20
    os.waitpid(pid, 0)
    os.close(started._lifeline.read)


@pytest.mark.parametrize("safe", ["", "1"])
def test_a_worker_imports_from_where_its_server_does(tmp_path: Path, safe: str) -> None:
    """Python puts the working directory first, or nothing: what is first in PYTHONPATH stays in both cases."""
    program = COMMAND[2].partition("from relaax")[0] + "print(sys.path[0])"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": safe}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    assert ran.stdout == f"{tmp_path}\n"


@pytest.fixture
def hanging(processes: Processes, tmp_path: Path) -> Running:
    """A server whose first process is at the algorithm's import, which hangs."""
    there = tmp_path / "there"
    algorithm = write_package(tmp_path, HANGING.format(there=str(there)))
    config = write_config(tmp_path, {"path": str(algorithm)}, worker_start="spawn")
    server = processes.start(sys.executable, SERVER, "--config", config)
    wait_until(there.exists, "the algorithm is being imported", 120)
    return server


def first_process(server: Running) -> psutil.Process:
    (process,) = psutil.Process(server.pid).children()
    return process


def test_an_interrupted_start_leaves_nothing_behind(hanging: Running) -> None:
    first = first_process(hanging)
    hanging.send_signal(signal.SIGINT)  # to the server alone
    assert hanging.wait(60) != 0
    assert not first.is_running()
    assert "BrokenPipeError" not in hanging.stderr


def test_what_is_still_importing_does_not_outlive_a_killed_server(hanging: Running) -> None:
    first = first_process(hanging)
    hanging.kill()
    wait_until(lambda: not is_alive(first), "it has ended")
    assert "Traceback" not in hanging.stderr
