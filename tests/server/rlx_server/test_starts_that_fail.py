"""Tests of worker starts that fail or hang: no process and no descriptor is left, and the server does not block."""

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

pathlib.Path({marker!r}).touch()
while True:
    time.sleep(0.1)
"""


def descriptors() -> set[str]:
    """Return the open descriptors of this process.

    The set may shrink, as gRPC's threads close descriptors of earlier tests.
    """
    return set(os.listdir("/dev/fd"))


@pytest.fixture
def folders() -> Iterator[WorkerFolders]:
    created = WorkerFolders()
    yield created
    created.close()


@pytest.fixture
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for sock in pair:
        sock.close()


def test_failed_fork_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, folders: WorkerFolders, socket_pair: tuple[socket.socket, socket.socket]
) -> None:
    def fail() -> int:
        raise OSError(errno.EAGAIN, "process limit reached")

    monkeypatch.setattr(spawners, "_require_one_thread", lambda _: None)
    monkeypatch.setattr(spawners.gc, "freeze", lambda: None)
    algorithm = load_algorithm(str(ALGORITHM), ALGORITHM.parent)
    plan = WorkerPlan(
        RlxServerSection(), algorithm, algorithm.configure({"path": str(ALGORITHM)}), "cpu", OfflineClient
    )
    spawner = ForkSpawner(plan, folders, METERS)
    monkeypatch.setattr(os, "fork", fail)
    folders.ensure()  # it opens a lock file
    before = descriptors()
    with pytest.raises(OSError, match="process limit reached"):
        spawner.spawn(socket_pair[0], None, False, lambda: None)
    assert descriptors() <= before
    spawner.stop_workers()
    os.close(spawner._lifeline.read)


METERS = Meters(1, 1)


def make_spawner(folders: WorkerFolders, section: dict[str, str] | None = None) -> SpawnSpawner:
    return SpawnSpawner(RlxServerSection(), section or {}, str(ALGORITHM), ALGORITHM.parent, folders, METERS)


@pytest.mark.parametrize("free", range(6))
def test_failed_spawn_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, folders: WorkerFolders, socket_pair: tuple[socket.socket, socket.socket], free: int
) -> None:
    monkeypatch.setattr(SpawnSpawner, "_check_start", lambda _: None)
    monkeypatch.setattr(spawners, "COMMAND", ("/there/is/no/such/program",))
    spawner = make_spawner(folders)
    folders.ensure()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = descriptors()
    highest = max(map(int, before))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 8, limits[1]))
        try:
            while True:
                taken.append(os.dup(socket_pair[1].fileno()))
        except OSError:
            for descriptor in taken[len(taken) - free :]:
                os.close(descriptor)
            del taken[len(taken) - free :]
        with pytest.raises(OSError):
            spawner.spawn(socket_pair[0], None, False, lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)
    assert descriptors() <= before
    spawner.stop_workers()
    os.close(spawner._lifeline.read)


# Reads its plan once the lifeline is closed, and reports the number of its bytes.
LATE_READER = """
import os, sys
connection, lifeline, reports, _, orders = map(int, sys.argv[-5:])
if connection >= 0:
    os.read(lifeline, 1)
    with os.fdopen(orders, "rb") as file:
        os.write(reports, str(len(file.read())).encode())
"""


@pytest.mark.timeout(60)
def test_spawn_does_not_wait_until_a_long_plan_is_read(
    monkeypatch: pytest.MonkeyPatch, folders: WorkerFolders, socket_pair: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr(spawners, "COMMAND", (sys.executable, "-c", LATE_READER))
    spawner = make_spawner(folders, {"colour": "x" * 2**20})
    pid, reports = spawner.spawn(socket_pair[0], None, False, lambda: None)
    spawner.stop_workers()
    os.set_blocking(reports, True)
    with os.fdopen(reports, "rb") as stream:
        assert int(stream.read()) > 2**20
    os.waitpid(pid, 0)
    os.close(spawner._lifeline.read)


@pytest.mark.parametrize("safe_path", ["", "1"])
def test_spawned_worker_keeps_the_import_path_of_the_server(tmp_path: Path, safe_path: str) -> None:
    """Python puts the working directory first unless PYTHONSAFEPATH is set. PYTHONPATH comes first in both cases."""
    program = COMMAND[2].partition("from relaax")[0] + "print(sys.path[0])"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": safe_path}
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    assert finished.stdout == f"{tmp_path}\n"


@pytest.fixture
def hanging(processes: Processes, tmp_path: Path) -> Running:
    """Start a server whose first worker hangs while it imports the algorithm."""
    marker = tmp_path / "marker"
    algorithm = write_package(tmp_path, HANGING.format(marker=str(marker)))
    config = write_config(tmp_path, {"path": str(algorithm)}, worker_start="spawn")
    server = processes.start(sys.executable, SERVER, "--config", config)
    wait_until(marker.exists, "the algorithm is being imported", 120)
    return server


def first_process(server: Running) -> psutil.Process:
    (process,) = psutil.Process(server.pid).children()
    return process


def test_interrupted_start_leaves_no_process(hanging: Running) -> None:
    first = first_process(hanging)
    hanging.send_signal(signal.SIGINT)  # to the server, but not to its children
    assert hanging.wait(60) != 0
    assert not first.is_running()
    assert "BrokenPipeError" not in hanging.stderr


def test_importing_process_ends_with_a_killed_server(hanging: Running) -> None:
    first = first_process(hanging)
    hanging.kill()
    wait_until(lambda: not is_alive(first), "the first process has ended")
    assert "Traceback" not in hanging.stderr
