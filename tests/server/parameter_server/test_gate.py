from __future__ import annotations

import threading

import pytest

from relaax.server.parameter_server.gate import Away, Gate
from support.processes import wait_until


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_closed_gate_turns_everybody_away_with_its_sentence() -> None:
    gate = Gate("shard 1 of 2 is away")
    for update in (True, False):
        with pytest.raises(Away, match="shard 1 of 2 is away"), gate.passing(update=update):
            raise AssertionError("nobody may be here")
    gate.open()
    with gate.passing(update=True), gate.passing():
        assert gate.closed == ""


def test_closing_waits_until_nobody_is_inside() -> None:
    gate, inside, leave, closed = Gate(), threading.Event(), threading.Event(), threading.Event()

    def stay() -> None:
        with gate.passing():
            inside.set()
            assert leave.wait(30)
            assert not closed.is_set()

    def close() -> None:
        gate.close("closed")
        closed.set()

    threads = [threading.Thread(target=stay), threading.Thread(target=close)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    wait_until(lambda: gate.closed, "the gate is closing")
    leave.set()
    for thread in threads:
        thread.join(30)
    assert closed.is_set()


def test_a_hold_lets_updates_wait_and_readers_pass() -> None:
    gate, passed = Gate(), threading.Event()

    def update() -> None:
        with gate.passing(update=True):
            passed.set()

    assert gate.hold(1000.0)
    with gate.passing():
        pass
    thread = threading.Thread(target=update)
    thread.start()
    assert gate.release()
    thread.join(30)
    assert passed.is_set()


def test_a_hold_that_nobody_releases_ends_by_itself_and_says_so() -> None:
    gate = Gate()
    assert gate.hold(0.01)
    with gate.passing(update=True):  # waits for the end of the hold
        pass
    assert not gate.release()


def test_a_hold_that_was_slept_over_is_broken() -> None:
    clock = Clock()
    gate = Gate(clock=clock)
    assert gate.hold(2.0)
    clock.now = 1.9
    assert gate.release()
    assert gate.hold(2.0)
    clock.now += 30.0  # this process was stopped
    assert not gate.release()


def test_at_its_very_end_a_hold_holds_nobody_and_is_broken() -> None:
    clock = Clock()
    gate = Gate(clock=clock)
    assert gate.hold(2.0)
    clock.now = 2.0
    with gate.passing(update=True):
        pass
    assert not gate.release()


def test_an_update_that_takes_too_long_makes_the_hold_fail() -> None:
    gate = Gate()
    with gate.passing(update=True):
        assert not gate.hold(0.01)


def test_closing_frees_those_who_wait_for_the_end_of_a_hold() -> None:
    gate = Gate()
    turned_away = threading.Event()

    def update() -> None:
        try:
            with gate.passing(update=True):
                pass
        except Away:
            turned_away.set()

    gate.hold(1000.0)
    thread = threading.Thread(target=update)
    thread.start()
    gate.close("ending")
    thread.join(30)
    assert turned_away.is_set()
