"""The circle of connections: bounds that any queue keeps, and cases with a known answer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from relaax.planning.queueing import Circle, Pool, Turning, turn


def circle(connections: int, cores: int = 2, **changes: object) -> Circle:
    """100 us in environments, 200 us acting, 250 us of learning after every fifth message; all on one machine."""
    pool = Pool(cores, 1, 100 + 200 + 250 / 5)
    usual = Circle(
        connections=connections,
        client=100.0,
        act=200.0,
        learn=250.0,
        delay=50.0,
        rollout=5,
        overlap=True,
        period=0.0,
        environments=pool,
        workers=pool,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def test_one_connection_waits_for_nobody() -> None:
    alone = turn(circle(1, overlap=False))
    assert alone.round == pytest.approx(100 + 200 + 50 + 250 / 5)
    assert alone.wait == 0
    overlapped = turn(circle(1))
    assert overlapped.round == pytest.approx(100 + 200 + 50 + (250 - 150) / 5)


def test_throughput_grows_with_connections_up_to_what_the_cores_can_do() -> None:
    speeds = [turn(circle(count)).messages for count in (1, 2, 4, 8, 16, 64, 256, 4096)]
    assert speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(2e6 / 350, rel=0.01)
    assert all(speed <= 2e6 / 350 * (1 + 1e-9) for speed in speeds)
    assert turn(circle(4096, cores=8)).messages == pytest.approx(8e6 / 350, rel=0.01)


def test_a_round_is_as_long_as_littles_law_says() -> None:
    for count in (1, 3, 10, 100):
        found = turn(circle(count))
        assert found.messages * found.round / 1e6 == pytest.approx(count)


def test_a_rate_that_can_be_kept_is_kept() -> None:
    held = turn(circle(10, period=1e5))
    assert held.messages == pytest.approx(100.0)
    assert held.quantile(0.5) < 400
    assert turn(circle(10_000, period=1e5)).messages == pytest.approx(2e6 / 350, rel=0.01)


def test_a_shared_server_limits_all() -> None:
    assert turn(circle(64, limit=1000.0)).messages == pytest.approx(1000.0)


def test_environments_and_workers_may_have_machines_of_their_own() -> None:
    own = circle(1000, environments=Pool(2, 4, 100.0), workers=Pool(2, 1, 250.0))
    assert turn(own).messages == pytest.approx(2e6 / 250, rel=0.01)
    more = circle(1000, environments=Pool(2, 4, 100.0), workers=Pool(2, 3, 250.0))
    assert turn(more).messages == pytest.approx(6e6 / 250, rel=0.02)


def test_one_in_a_rollout_finds_the_worker_learning() -> None:
    found = Turning(messages=1.0, round=1.0, act=200.0, blocked=1000.0, wait=0.0, rollout=20)
    assert found.quantile(0.5) == pytest.approx(200.0, abs=0.01)
    assert found.quantile(0.94) == pytest.approx(200.0, abs=0.01)
    assert found.quantile(0.99) == pytest.approx(1200.0, abs=0.01)


def test_who_waits_for_a_core_waits_exponentially() -> None:
    found = Turning(messages=1.0, round=1.0, act=100.0, blocked=0.0, wait=50.0, rollout=1)
    assert found.quantile(0.5) == pytest.approx(100 + 50 * math.log(2), rel=1e-3)
    assert found.quantile(0.99) == pytest.approx(100 + 50 * math.log(100), rel=1e-3)


def test_a_pool_is_never_more_than_full() -> None:
    pool = Pool(2, 3, 100.0)
    assert pool.most == pytest.approx(60_000.0)
    assert pool.stretch(0.0, 10) == 1.0
    assert pool.stretch(30_000.0, 1000) > pool.stretch(10_000.0, 1000) > 1.0
    assert math.isinf(pool.stretch(70_000.0, 1000))
    assert pool.stretch(59_000.0, 3) == 1.0, "one connection on each machine waits for nobody"
