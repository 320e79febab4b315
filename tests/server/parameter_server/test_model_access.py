from __future__ import annotations

import threading

import pytest

from relaax.server.parameter_server.shard.model import ModelAccess
from relaax.server.service_errors import TryAgain
from support.processes import wait_until


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_closed_access_rejects_calls_with_its_message() -> None:
    access = ModelAccess("shard 1 of 2 is unavailable")
    for update in (True, False):
        with pytest.raises(TryAgain, match="shard 1 of 2 is unavailable"), access.enter(update=update):
            raise AssertionError("the access is closed")
    access.open()
    with access.enter(update=True), access.enter():
        assert access.closed == ""


def test_close_waits_for_calls_inside() -> None:
    access, inside, leave, closed = ModelAccess(), threading.Event(), threading.Event(), threading.Event()

    def stay() -> None:
        with access.enter():
            inside.set()
            assert leave.wait(30)
            assert not closed.is_set()

    def close() -> None:
        access.close("closed")
        closed.set()

    threads = [threading.Thread(target=stay), threading.Thread(target=close)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    wait_until(lambda: access.closed, "the access is closing")
    leave.set()
    for thread in threads:
        thread.join(30)
    assert closed.is_set()


def test_hold_blocks_updates_but_not_reads() -> None:
    access, passed = ModelAccess(), threading.Event()

    def update() -> None:
        with access.enter(update=True):
            passed.set()

    assert access.hold(1000.0)
    with access.enter():
        pass
    thread = threading.Thread(target=update)
    thread.start()
    assert access.release()
    thread.join(30)
    assert passed.is_set()


def test_unreleased_hold_expires_and_its_release_fails() -> None:
    access = ModelAccess()
    assert access.hold(0.01)
    with access.enter(update=True):  # waits until the hold expires
        pass
    assert not access.release()


def test_release_long_after_the_deadline_fails() -> None:
    clock = Clock()
    access = ModelAccess(clock=clock)
    assert access.hold(2.0)
    clock.now = 1.9
    assert access.release()
    assert access.hold(2.0)
    clock.now += 30.0  # the process was suspended
    assert not access.release()


def test_hold_expires_exactly_at_its_deadline() -> None:
    clock = Clock()
    access = ModelAccess(clock=clock)
    assert access.hold(2.0)
    clock.now = 2.0
    with access.enter(update=True):
        pass
    assert not access.release()


def test_slow_update_makes_the_hold_fail() -> None:
    access = ModelAccess()
    with access.enter(update=True):
        assert not access.hold(0.01)


def test_close_rejects_updates_that_wait_for_a_hold() -> None:
    access = ModelAccess()
    rejected = threading.Event()

    def update() -> None:
        try:
            with access.enter(update=True):
                pass
        except TryAgain:
            rejected.set()

    access.hold(1000.0)
    thread = threading.Thread(target=update)
    thread.start()
    access.close("ending")
    thread.join(30)
    assert rejected.is_set()
