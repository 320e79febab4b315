"""Workers from their server's point of view: real processes, which do what a worker's would."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Iterator

import pytest

from relaax.server.rlx_server import children
from relaax.server.rlx_server.children import Children
from relaax.server.rlx_server.news import News
from support.processes import wait_until


class Nursery:
    """Children whose processes are `sleep`; the other end of each one's news is here."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.ended: list[int] = []
        self.children = Children(self.selector, self.ended.append)
        self._news: dict[int, News] = {}

    def add(self, serves: bool = True) -> int:
        read, write = os.pipe()
        os.set_blocking(read, False)
        pid = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)
        self.children.add(pid, read, serves)
        self._news[pid] = News(write)
        return pid

    def news_of(self, pid: int) -> News:
        return self._news[pid]

    def turn_until(self, handshakes: int) -> None:
        """A process that has just started may hold all pipes for a moment."""

        def known() -> bool:
            self.turn()
            return self.children.handshakes == handshakes

        wait_until(known, f"all but {handshakes} have said what they had to")

    def turn(self) -> None:
        for key, _ in self.selector.select(0):
            self.children.news(key.fd)
        self.children.reap()

    def close(self) -> None:
        for pid in self.children.pids:
            os.kill(pid, signal.SIGKILL)
        while self.children.pids:
            self.children.reap(block=True)
        for news in self._news.values():
            news.close()
        self.selector.close()


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
    monkeypatch.setattr(children, "MAX_LEAVING", 2)
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
