"""Workers from their server's point of view: real processes, which do what a worker's would."""

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


class Nursery:
    """Children whose processes are `sleep`; the other end of each one's reports is here."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.ended: list[int] = []
        self.failed: list[str] = []
        self.beside: list[list[int]] = []
        self.no_room: str | None = None
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
        self.beside.append(workers)
        return self.no_room

    def resume(self, pid: int) -> str | None:
        """The worker's client has gone on; what the worker is answered."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self._reports[pid].resume, self._lifeline)
            wait_until(lambda: (self.turn(), answer.done())[1], "it was answered")
            return answer.result()

    def news_of(self, pid: int) -> WorkerReports:
        return self._reports[pid]

    def turn_until(self, handshakes: int) -> None:
        """A process that has just started may hold all pipes for a moment."""

        def known() -> bool:
            self.turn()
            return self.children.handshakes == handshakes

        wait_until(known, f"all but {handshakes} have said what they had to")

    def turn(self) -> None:
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
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def test_a_place_is_free_once_it_is_known_whether_the_client_is_let_in(nursery: Nursery) -> None:
    admitted, told, unknown, wrong = nursery.add(), nursery.add(), nursery.add(), nursery.add(serves=False)
    assert (nursery.children.handshakes, nursery.children.refusing) == (4, 1)
    nursery.news_of(admitted).admitted()
    nursery.news_of(told).close()
    nursery.news_of(wrong).close()
    nursery.turn_until(handshakes=1)
    assert nursery.children.refusing == 0
    assert nursery.children.serving == [admitted, unknown]
    assert nursery.children.pids == [admitted, told, unknown, wrong]


def test_only_so_many_wait_for_clients_that_were_told(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "MAX_CLOSING", 2)
    workers = [nursery.add() for _ in range(4)]
    for index, pid in enumerate(workers):
        nursery.news_of(pid).close()
        nursery.turn_until(handshakes=3 - index)

    def ended() -> list[int]:
        nursery.turn()
        return nursery.ended if len(nursery.ended) == 2 else []

    assert sorted(wait_until(ended, "two were ended")) == sorted(workers[:2])
    assert nursery.children.pids == workers[2:]
    assert not caplog.records, "that is no accident to be told of"


def test_who_waits_for_its_client_takes_no_place(nursery: Nursery) -> None:
    pid = nursery.add()
    assert (nursery.children.handshakes, nursery.children.serving) == (1, [pid])
    nursery.news_of(pid).send(STALLED)
    nursery.turn_until(handshakes=0)
    assert nursery.children.serving == []
    assert nursery.resume(pid) is None
    assert nursery.children.handshakes == 1
    assert nursery.children.serving == [pid]
    nursery.news_of(pid).admitted()
    nursery.turn_until(handshakes=0)
    assert nursery.children.serving == [pid]
    assert nursery.failed == []


def test_whether_there_is_room_is_decided_when_the_client_has_gone_on(nursery: Nursery) -> None:
    here, waiting = nursery.add(), nursery.add()
    nursery.news_of(waiting).send(STALLED)
    nursery.turn_until(handshakes=1)
    nursery.no_room = "this server is full"
    assert nursery.resume(waiting) == "this server is full"
    assert nursery.beside == [[here]]
    assert nursery.children.serving == [here]


def test_no_more_are_started_while_those_that_wait_have_hardly_begun(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "MAX_STALLED", 2)
    monkeypatch.setattr(children, "STALL_SECONDS", 3600.0)
    for handshakes in (0, 0):
        assert not nursery.children.crowded
        nursery.news_of(nursery.add()).send(STALLED)
        nursery.turn_until(handshakes)
    assert nursery.children.crowded
    monkeypatch.setattr(children, "STALL_SECONDS", 0.0)
    assert not nursery.children.crowded


def test_of_too_many_that_wait_the_oldest_is_ended_and_its_client_has_failed(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "MAX_STALLED", 2)
    pids = [nursery.add(host=f"10.0.0.{i}") for i in range(3)]
    for i, pid in enumerate(pids):
        nursery.news_of(pid).send(STALLED)
        nursery.turn_until(handshakes=2 - i)
    assert nursery.failed == ["10.0.0.0"]

    def buried() -> bool:
        nursery.turn()
        return nursery.ended == pids[:1]

    wait_until(buried, "the oldest was ended")


def test_a_client_that_failed_is_told_of_by_its_host(nursery: Nursery) -> None:
    pid = nursery.add(host="10.0.0.9")
    nursery.news_of(pid).send(FAILED)
    nursery.news_of(pid).close()
    nursery.turn_until(handshakes=0)
    assert nursery.failed == ["10.0.0.9"]
    assert nursery.children.serving == []


def greeted(nursery: Nursery, count: int, host: str = "10.0.0.1") -> list[int]:
    pids = []
    for _ in range(count):
        pids.append(nursery.add(host=host))
        nursery.news_of(pids[-1]).admitted()
        nursery.news_of(pids[-1]).send(WELCOMED)
        wait_until(lambda: (nursery.turn(), len(nursery.places) == len(pids))[1], "it was heard")
    return pids


def test_who_has_proved_nothing_makes_room_and_is_told_so(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "UNPROVEN_SECONDS", 0.0)
    monkeypatch.setattr(admission, "EXTRA_PLACES", 1)
    first, second = greeted(nursery, 2)
    assert nursery.children.handshakes == 0
    assert nursery.children.serving == [first, second]
    nursery.children.reserve_place()
    assert nursery.children.serving == [second]
    assert nursery.children.pids == [first, second]
    assert nursery.children.counts["crowded_out"] == 1
    poll = select.poll()
    poll.register(nursery.news_of(first).descriptor, select.POLLIN)
    poll.register(nursery.news_of(second).descriptor, select.POLLIN)
    assert [descriptor for descriptor, _ in poll.poll(20_000)] == [nursery.news_of(first).descriptor]


def test_who_has_proved_that_it_reads_stays(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "UNPROVEN_SECONDS", 0.0)
    pids = greeted(nursery, 2)
    for pid in pids:
        nursery.news_of(pid).send(PROVEN)
    wait_until(lambda: (nursery.turn(), len(nursery.places) == 0)[1], "they were heard")
    assert not nursery.children.free_place()
    assert nursery.children.serving == pids


def test_who_leaves_without_a_word_more_frees_its_place_and_has_not_failed(nursery: Nursery) -> None:
    (pid,) = greeted(nursery, 1)
    nursery.news_of(pid).send(FAILED)  # a mistake, but none of the handshake
    nursery.news_of(pid).close()
    wait_until(lambda: (nursery.turn(), len(nursery.places) == 0)[1], "it was heard")
    assert nursery.failed == []
    assert nursery.children.counts["handshake_failures"] == 0
    assert nursery.children.serving == []
