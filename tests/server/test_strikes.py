"""Addresses that fail too often, with a simulated clock."""

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


def test_address_is_blocked_for_exactly_a_minute(clock: Clock) -> None:
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


def test_failures_exactly_a_minute_apart_count(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    assert not strikes.add(HOST)
    clock.now += SECONDS
    assert strikes.add(HOST)


def test_address_can_be_blocked_again_after_its_minute(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    strikes.add(HOST)
    assert strikes.add(HOST)
    assert not strikes.add(HOST), "failures during the block do not count"
    clock.now += SECONDS + 0.1
    assert not strikes.add(HOST), "one failure does not block"
    assert not strikes.is_blocked(HOST)
    assert strikes.add(HOST)
    clock.now += SECONDS - 0.1
    assert strikes.is_blocked(HOST)


def test_failures_before_a_block_do_not_count_after_it(clock: Clock) -> None:
    strikes = Strikes(2, clock)
    strikes.add(HOST)
    assert strikes.add(HOST)
    clock.now += SECONDS
    assert not strikes.is_blocked(HOST)
    assert not strikes.add(HOST), "one failure does not block"
