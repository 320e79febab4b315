"""Processes on other machines, as the supervisor sees them: real keepers and processes, without Ray."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaax.cluster import remote_process
from relaax.cluster.keeper import FOLDER, HOST, METRICS, Keeper
from relaax.cluster.remote_process import EXIT_LOST, LATE_SECONDS, RemoteProcess
from relaax.supervision.process import MAX_FAILURES, StartError
from support.local_ray import LocalActor, use_local_ray
from support.processes import wait_until

LISTENS = """
import signal, sys
print("its words", *sys.argv[1:], flush=True)
print("it is listening on", sys.argv[1], flush=True)
signal.pause()
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


class Machines:
    """Makes the keepers of one process and records the requests."""

    def __init__(self, folder: Path) -> None:
        self.actors: list[LocalActor] = []
        self.again: list[bool] = []
        self.files = {"peers": "10.9.9.9:7\n"}
        self.placed = True
        self.process = RemoteProcess("it", folder / "it.log", True, self._place, lambda: self.files, folder / METRICS)

    def _place(self, again: bool) -> LocalActor:
        self.again.append(again)
        self.actors.append(LocalActor(lambda: Keeper("it", "10.1.2.3", True, {}), self.placed))
        return self.actors[-1]

    def close(self) -> None:
        for actor in self.actors:
            actor.end()


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    use_local_ray(monkeypatch)
    for pause in ("SNAPSHOT_SECONDS", "POLL_SECONDS", "STARTUP_SNAPSHOT_SECONDS"):
        monkeypatch.setattr(remote_process, pause, 0.01)
    made = Machines(tmp_path)
    yield made
    made.close()


def ready(process: RemoteProcess) -> str | None:
    """Return the address of a process that has become ready."""
    wait_until(lambda: process.is_ready, "it is ready", 60)
    return process.address


def log_of(process: RemoteProcess) -> str:
    return process.log.read_text() if process.log.exists() else ""


def test_process_is_started_watched_and_terminated(machines: Machines) -> None:
    process = machines.process
    process.start(python(LISTENS, f"{HOST}:7", f"{FOLDER}/peers"))
    assert ready(process) == process.address == "10.1.2.3:7"
    assert (process.exit_code(), process.is_done, process.pid) == (None, False, None)
    assert process.snapshot is not None and process.snapshot.host == "10.1.2.3"
    process.terminate()
    assert process.wait(60)
    assert (process.exit_code(), process.restarts) == (-signal.SIGTERM, 0)


def test_log_and_metrics_are_copied_once(machines: Machines, tmp_path: Path) -> None:
    writes = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1]); (folder / "a").mkdir(parents=True)
events = open(folder / "a" / "events", "ab", buffering=0)
for number in range(300):
    print("line", number, "x" * 2000, flush=True)
    events.write(b"%04d" % number * 500)
print("it done", flush=True)
"""
    process = machines.process
    process.start(python(writes, f"{FOLDER}/{METRICS}"))
    assert process.wait(60)
    wait_until(lambda: process.is_done and log_of(process).count("\n") == 301, "the whole log is copied")
    assert log_of(process).splitlines() == [f"line {number} {'x' * 2000}" for number in range(300)] + ["it done"]
    events = tmp_path / METRICS / "a" / "events"
    wait_until(lambda: process.exit_code() == 0 and events.stat().st_size == 600_000, "all metrics are copied")
    assert events.read_bytes() == b"".join(b"%04d" % number * 500 for number in range(300))


def test_dead_process_is_restarted_by_the_same_keeper(machines: Machines) -> None:
    process = machines.process
    command = python(LISTENS, "here:1")
    process.start(command)
    ready(process)
    assert process.snapshot is not None and process.snapshot.pid is not None
    os.kill(process.snapshot.pid, signal.SIGKILL)
    assert process.wait(60)
    assert process.exit_code() == -signal.SIGKILL
    process.restart(command)
    assert process.address is None, "the old address is not listed"
    ready(process)
    wait_until(
        lambda: process.exit_code() is None and log_of(process).count("its words here:1") == 2,
        "the log has the lines of both runs",
    )
    assert (machines.again, process.restarts, process.failed) == ([False], 1, "")


def test_repeated_quick_failures_raise_start_error(machines: Machines) -> None:
    process, failing = machines.process, python("raise SystemExit('no')")
    process.start(failing)
    for _ in range(MAX_FAILURES - 1):
        assert process.wait(60)
        process.restart(failing)
    assert process.wait(60)
    wait_until(
        lambda: process.exit_code() == 1 and log_of(process).count("no\n") == MAX_FAILURES,
        "all failures are in the log",
    )
    with pytest.raises(StartError, match=r"(?s)fails repeatedly.*no"):
        process.restart(failing)


def test_lost_machine_does_not_count_as_a_failure(machines: Machines) -> None:
    process, command = machines.process, python(LISTENS, "here:1")
    process.start(command)
    for _ in range(MAX_FAILURES + 2):  # a lost machine is no failure of the process
        ready(process)
        machines.actors[-1].lose()
        assert process.wait(60)
        assert (process.exit_code(), process.snapshot, process.is_done) == (EXIT_LOST, None, False)
        process.restart(command)
        assert process.was_ready, "it was ready once, so its next failure does not end the run"
    ready(process)
    assert machines.again == [False, *[True] * (MAX_FAILURES + 2)]
    assert process.restarts == MAX_FAILURES + 2
    assert log_of(process).count("relaax: it is lost: ") == MAX_FAILURES + 2
    wait_until(
        lambda: process.exit_code() is None and log_of(process).count("its words") == len(machines.again),
        "the log has the lines of all runs",
    )


def test_unavailable_machine_is_not_lost(machines: Machines) -> None:
    process = machines.process
    process.start(python(LISTENS, "here:1"))
    ready(process)
    (actor,) = machines.actors
    actor.unavailable = True
    before = actor.calls
    wait_until(lambda: process.exit_code() is not None or actor.calls > before + 3, "several snapshots fail")
    assert process.exit_code() is None
    actor.unavailable = False
    process.terminate()
    assert process.wait(60)
    assert process.exit_code() == -signal.SIGTERM


def test_failed_keeper_is_replaced_and_logged(machines: Machines) -> None:
    process, command = machines.process, python(LISTENS, "here:1")
    process.start(command)
    ready(process)
    assert process.snapshot is not None and process.snapshot.pid is not None
    shutil.rmtree(machines.actors[0].object._folder)
    os.kill(process.snapshot.pid, signal.SIGKILL)
    assert process.wait(60)
    process.restart(command)
    assert process.wait(60)
    assert process.exit_code() == EXIT_LOST
    assert "relaax: it is lost: its keeper failed: [Errno 2]" in log_of(process)
    assert machines.actors[0].killed
    process.restart(command)
    assert ready(process) == "here:1"
    assert (machines.again, process.restarts) == ([False, True], 2)


def test_process_without_a_place_is_logged_once(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machines.placed = False
    process = machines.process
    process.start(python(LISTENS, "here:1"))
    assert not process.is_waiting_for_place
    late = str(process.late_error(0.1))
    assert "it was not placed within 0.1 s: no machine of the cluster has the resources" in late
    monkeypatch.setattr(process, "_started_at", process._started_at - LATE_SECONDS)
    wait_until(lambda: process.is_waiting_for_place and "waits for a machine" in caplog.text, "the wait is logged")
    for _ in range(3):
        process._poll_at = 0.0
        assert process.is_waiting_for_place
    assert caplog.text.count("it waits for a machine") == 1
    machines.actors[0].place()
    assert ready(process) == "here:1"
    assert not process.is_waiting_for_place


def test_process_without_a_place_terminates_at_once(machines: Machines) -> None:
    machines.placed = False
    process = machines.process
    process.start(python(LISTENS, "here:1"))
    process.terminate()
    assert (process.wait(0.0), process.exit_code()) == (True, EXIT_LOST)
    assert machines.actors[0].killed, "its request for a place is cancelled"


def test_files_are_written_at_start_and_replaced_later(machines: Machines) -> None:
    process = machines.process
    process.put({"peers": "ignored"})  # ignored: the process is not started
    process.start(python(LISTENS, "here:1"))
    ready(process)
    keeper = machines.actors[0].object
    assert keeper.read("peers") == "10.9.9.9:7\n"
    process.put({"peers": f"{HOST}:8\n"})
    wait_until(lambda: keeper.read("peers") == "10.1.2.3:8\n", "it is replaced")
    machines.actors[0].lose()
    assert process.wait(60)
    process.put({"peers": "gone"})
    assert keeper.read("peers") == "10.1.2.3:8\n"


def test_close_kills_the_process_and_frees_its_place(machines: Machines) -> None:
    process = machines.process
    process.start(python(LISTENS, "here:1"))
    ready(process)
    snapshot = process.snapshot
    assert snapshot is not None and snapshot.pid is not None
    process.close()
    assert machines.actors[0].killed
    with pytest.raises(ProcessLookupError):
        os.kill(snapshot.pid, 0)
    assert process.snapshot is snapshot, "the last snapshot is kept"
    process.close()


def test_process_without_place_is_placed_again(machines: Machines) -> None:
    process = machines.process
    process.start(python(LISTENS, "here:1"))
    ready(process)
    process.release_place("others need it")
    assert (process.exit_code(), machines.actors[0].killed) == (EXIT_LOST, True)
    process.restart(python(LISTENS, "here:2"))
    assert ready(process) == "here:2"
    assert machines.again == [False, True]
