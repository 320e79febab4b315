"""Tests of the server's table of workers, with real processes that send the reports of workers."""

from __future__ import annotations

import concurrent.futures
import os
import select
import selectors
import signal
from collections.abc import Iterator

import pytest

from relaax.server.rlx_server.listening import admission, children
from relaax.server.rlx_server.listening.admission import UnprovenClients
from relaax.server.rlx_server.listening.children import Children
from relaax.server.rlx_server.worker_reports import FAILED, PROVEN, STALLED, WELCOMED, WorkerReports, report_sockets
from support.processes import wait_until


class WorkerTable:
    """A table of workers whose processes are `sleep`, with the workers' ends of the report sockets."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.ended: list[int] = []
        self.failed: list[str] = []
        self.serving_at_refusal: list[list[int]] = []
        self.refusal_sentence: str | None = None
        self.places = UnprovenClients(free=1)
        self.children = Children(self.selector, self.ended.append, self.failed.append, self._refusal, self.places)
        self._reports: dict[int, WorkerReports] = {}
        self._lifeline, self._server = os.pipe()

    def add(self, serves: bool = True, host: str = "") -> int:
        read, write = report_sockets()
        os.set_blocking(read, False)
        pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
        self.children.add(pid, read, serves, host)
        self._reports[pid] = WorkerReports(write)
        return pid

    def _refusal(self, workers: list[int]) -> str | None:
        self.serving_at_refusal.append(workers)
        return self.refusal_sentence

    def resume(self, pid: int) -> str | None:
        """Report that the worker's client has sent its hello; return the server's answer."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self._reports[pid].resume, self._lifeline)
            wait_until(lambda: (self.poll(), answer.done())[1], "the server answers")
            return answer.result()

    def reports_of(self, pid: int) -> WorkerReports:
        return self._reports[pid]

    def poll_until(self, handshakes: int) -> None:
        """Poll until `handshakes` workers are in their handshake.

        A process that has just started may hold all pipes for a moment.
        """

        def is_reached() -> bool:
            self.poll()
            return self.children.handshakes == handshakes

        wait_until(is_reached, f"{handshakes} workers in their handshake")

    def poll(self) -> None:
        for key, _ in self.selector.select(0):
            self.children.read_report(key.fd)
        self.children.reap()

    def close(self) -> None:
        for pid in self.children.pids:
            os.kill(pid, signal.SIGKILL)
        while self.children.pids:
            self.children.reap(block=True)
        for reports in self._reports.values():
            reports.close()
        self.selector.close()
        os.close(self._lifeline)
        os.close(self._server)


@pytest.fixture
def table() -> Iterator[WorkerTable]:
    created = WorkerTable()
    yield created
    created.close()


def test_handshake_ends_once_the_client_is_admitted_or_refused(table: WorkerTable) -> None:
    admitted, refused, unknown, wrong = table.add(), table.add(), table.add(), table.add(serves=False)
    assert (table.children.handshakes, table.children.refusing) == (4, 1)
    table.reports_of(admitted).admitted()
    table.reports_of(refused).close()
    table.reports_of(wrong).close()
    table.poll_until(handshakes=1)
    assert table.children.refusing == 0
    assert table.children.serving == [admitted, unknown]
    assert table.children.pids == [admitted, refused, unknown, wrong]


def test_reports_of_ended_workers_are_counted(table: WorkerTable) -> None:
    pid = table.add(host="10.0.0.1")
    for report in (STALLED, FAILED):
        table.reports_of(pid).send(report)
    os.kill(pid, signal.SIGTERM)
    wait_until(table.children.reap, "the worker is reaped")
    assert table.failed == ["10.0.0.1"]


def test_oldest_closing_workers_are_killed_past_max_closing(
    table: WorkerTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "MAX_CLOSING", 2)
    workers = [table.add() for _ in range(4)]
    for index, pid in enumerate(workers):
        table.reports_of(pid).close()
        table.poll_until(handshakes=3 - index)

    def ended() -> list[int]:
        table.poll()
        return table.ended if len(table.ended) == 2 else []

    assert sorted(wait_until(ended, "two workers have ended")) == sorted(workers[:2])
    assert table.children.pids == workers[2:]
    assert not caplog.records, "killing a worker that only closes is not logged"


def test_stalled_worker_takes_no_place_until_it_resumes(table: WorkerTable) -> None:
    pid = table.add()
    assert (table.children.handshakes, table.children.serving) == (1, [pid])
    table.reports_of(pid).send(STALLED)
    table.poll_until(handshakes=0)
    assert table.children.serving == []
    assert table.resume(pid) is None
    assert table.children.handshakes == 1
    assert table.children.serving == [pid]
    table.reports_of(pid).admitted()
    table.poll_until(handshakes=0)
    assert table.children.serving == [pid]
    assert table.failed == []


def test_room_is_checked_when_a_stalled_worker_resumes(table: WorkerTable) -> None:
    here, waiting = table.add(), table.add()
    table.reports_of(waiting).send(STALLED)
    table.poll_until(handshakes=1)
    table.refusal_sentence = "this server is full"
    assert table.resume(waiting) == "this server is full"
    assert table.serving_at_refusal == [[here]]
    assert table.children.serving == [here]


def test_server_is_crowded_past_the_limit_of_stalled_workers(
    table: WorkerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "MAX_STALLED", 2)
    monkeypatch.setattr(children, "STALL_SECONDS", 3600.0)
    for handshakes in (0, 0):
        assert not table.children.crowded
        table.reports_of(table.add()).send(STALLED)
        table.poll_until(handshakes)
    assert table.children.crowded
    monkeypatch.setattr(children, "STALL_SECONDS", 0.0)
    assert not table.children.crowded


def test_oldest_stalled_worker_past_limit_is_killed_as_failed(
    table: WorkerTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "MAX_STALLED", 2)
    pids = [table.add(host=f"10.0.0.{i}") for i in range(3)]
    for i, pid in enumerate(pids):
        table.reports_of(pid).send(STALLED)
        table.poll_until(handshakes=2 - i)
    assert table.failed == ["10.0.0.0"]

    def is_reaped() -> bool:
        table.poll()
        return table.ended == pids[:1]

    wait_until(is_reaped, "the oldest worker has ended")


def test_failed_client_is_reported_with_its_host(table: WorkerTable) -> None:
    pid = table.add(host="10.0.0.9")
    table.reports_of(pid).send(FAILED)
    table.reports_of(pid).close()
    table.poll_until(handshakes=0)
    assert table.failed == ["10.0.0.9"]
    assert table.children.serving == []


def welcome_clients(table: WorkerTable, count: int, host: str = "10.0.0.1") -> list[int]:
    pids = []
    for _ in range(count):
        pids.append(table.add(host=host))
        table.reports_of(pids[-1]).admitted()
        table.reports_of(pids[-1]).send(WELCOMED)
        wait_until(lambda: (table.poll(), len(table.places) == len(pids))[1], "the welcome is recorded")
    return pids


def test_oldest_unproven_worker_is_evicted_and_notified(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "UNPROVEN_SECONDS", 0.0)
    monkeypatch.setattr(admission, "EXTRA_PLACES", 1)
    first, second = welcome_clients(table, 2)
    assert table.children.handshakes == 0
    assert table.children.serving == [first, second]
    table.children.reserve_place()
    assert table.children.serving == [second]
    assert table.children.pids == [first, second]
    assert table.children.counts["crowded_out"] == 1
    poll = select.poll()
    poll.register(table.reports_of(first).descriptor, select.POLLIN)
    poll.register(table.reports_of(second).descriptor, select.POLLIN)
    assert [descriptor for descriptor, _ in poll.poll(20_000)] == [table.reports_of(first).descriptor]


def test_proven_workers_are_not_evicted(table: WorkerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "UNPROVEN_SECONDS", 0.0)
    pids = welcome_clients(table, 2)
    for pid in pids:
        table.reports_of(pid).send(PROVEN)
    wait_until(lambda: (table.poll(), len(table.places) == 0)[1], "the reports are read")
    assert not table.children.free_place()
    assert table.children.serving == pids


def test_client_lost_after_its_welcome_is_not_a_failed_handshake(table: WorkerTable) -> None:
    (pid,) = welcome_clients(table, 1)
    table.reports_of(pid).send(FAILED)  # a protocol error after the handshake
    table.reports_of(pid).close()
    wait_until(lambda: (table.poll(), len(table.places) == 0)[1], "the end of the reports is read")
    assert table.failed == []
    assert table.children.counts["handshake_failures"] == 0
    assert table.children.serving == []
