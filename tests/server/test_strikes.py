"""Addresses that fail too often, by a clock of the test's own."""

from __future__ import annotations

import pytest

from relaax.server.security.strikes import SECONDS, Strikes

HOST = "10.0.0.1"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_address_is_out_for_a_minute_and_no_longer(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    strikes.add(HOST)
    assert strikes.add(HOST)
    clock.now += SECONDS - 0.001
    assert strikes.is_blocked(HOST)
    clock.now += 0.001
    assert not strikes.is_blocked(HOST)


def test_failures_of_more_than_a_minute_ago_do_not_count(clock: Clock) -> None:
    strikes = Strikes(3, clock)
    for _ in range(20):
        assert not strikes.add(HOST)
        clock.now += SECONDS / 2 + 0.1
        assert not strikes.add(HOST)
        clock.now += SECONDS / 2 + 0.1
    assert not strikes.is_blocked(HOST)


def test_failures_within_a_minute_to_the_second_count(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    assert not strikes.add(HOST)
    clock.now += SECONDS
    assert strikes.add(HOST)


def test_an_address_that_comes_back_from_its_minute_begins_anew_and_may_be_out_again(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    strikes.add(HOST)
    assert strikes.add(HOST)
    assert not strikes.add(HOST), "what fails meanwhile is no news"
    clock.now += SECONDS + 0.1
    assert not strikes.add(HOST), "one failure is not two"
    assert not strikes.is_blocked(HOST)
    assert strikes.add(HOST)
    clock.now += SECONDS - 0.1
    assert strikes.is_blocked(HOST)


def test_the_failures_that_put_an_address_out_do_not_count_again(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    strikes.add(HOST)
    assert strikes.add(HOST)
    clock.now += SECONDS
    assert not strikes.is_blocked(HOST)
    assert not strikes.add(HOST), "one failure is not two"
