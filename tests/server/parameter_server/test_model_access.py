from __future__ import annotations

import threading

import pytest

from relaax.server.parameter_server.shard.model import ModelAccess
from relaax.server.service_errors import TryAgain
from support.processes import wait_until


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_closed_gate_turns_everybody_away_with_its_sentence() -> None:
    access = ModelAccess("shard 1 of 2 is away")
    for update in (True, False):
        with pytest.raises(TryAgain, match="shard 1 of 2 is away"), access.enter(update=update):
            raise AssertionError("nobody may be here")
    access.open()
    with access.enter(update=True), access.enter():
        assert access.closed == ""


def test_closing_waits_until_nobody_is_inside() -> None:
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


def test_a_hold_lets_updates_wait_and_readers_pass() -> None:
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


def test_a_hold_that_nobody_releases_ends_by_itself_and_says_so() -> None:
    access = ModelAccess()
    assert access.hold(0.01)
    with access.enter(update=True):  # waits for the end of the hold
        pass
    assert not access.release()


def test_a_hold_that_was_slept_over_is_broken() -> None:
    clock = Clock()
    access = ModelAccess(clock=clock)
    assert access.hold(2.0)
    clock.now = 1.9
    assert access.release()
    assert access.hold(2.0)
    clock.now += 30.0  # this process was stopped
    assert not access.release()


def test_at_its_very_end_a_hold_holds_nobody_and_is_broken() -> None:
    clock = Clock()
    access = ModelAccess(clock=clock)
    assert access.hold(2.0)
    clock.now = 2.0
    with access.enter(update=True):
        pass
    assert not access.release()


def test_an_update_that_takes_too_long_makes_the_hold_fail() -> None:
    access = ModelAccess()
    with access.enter(update=True):
        assert not access.hold(0.01)


def test_closing_frees_those_who_wait_for_the_end_of_a_hold() -> None:
    access = ModelAccess()
    turned_away = threading.Event()

    def update() -> None:
        try:
            with access.enter(update=True):
                pass
        except TryAgain:
            turned_away.set()

    access.hold(1000.0)
    thread = threading.Thread(target=update)
    thread.start()
    access.close("ending")
    thread.join(30)
    assert turned_away.is_set()
