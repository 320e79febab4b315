"""The queueing network: bounds that hold for any queue, and cases with a known solution."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from relaax.planning.queueing import ClosedNetwork, Pool, Solution, Waiting, solve


def network(connections: int, cores: int = 2, **changes: object) -> ClosedNetwork:
    """100 us in environments, 200 us of acting, 250 us of learning after each fifth message, all on one machine."""
    pool = Pool(cores, 1, 100 + 200 + 250 / 5, 2.0)
    usual = ClosedNetwork(
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


def test_single_connection_does_not_wait() -> None:
    alone = solve(network(1, overlap=False))
    assert alone.round == pytest.approx(100 + 200 + 50 + 250 / 5)
    assert alone.worker.mean == alone.client.mean == 0
    overlapped = solve(network(1))
    assert overlapped.round == pytest.approx(100 + 200 + 50 + (250 - 150) / 5)


def test_throughput_grows_with_connections_up_to_capacity() -> None:
    speeds = [solve(network(count)).messages for count in (1, 2, 4, 8, 16, 64, 256, 4096)]
    assert speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(2e6 / 350, rel=0.01)
    assert all(speed <= 2e6 / 350 * (1 + 1e-9) for speed in speeds)
    assert solve(network(4096, cores=8)).messages == pytest.approx(8e6 / 350, rel=0.01)


def test_round_time_follows_littles_law() -> None:
    for count in (1, 3, 10, 100):
        found = solve(network(count))
        assert found.messages * found.round / 1e6 == pytest.approx(count)


def test_feasible_rate_is_reached() -> None:
    held = solve(network(10, period=1e5))
    assert held.messages == pytest.approx(100.0)
    assert held.quantile(0.5) < 400
    assert solve(network(10_000, period=1e5)).messages == pytest.approx(2e6 / 350, rel=0.01)


def test_shared_server_limits_throughput() -> None:
    assert solve(network(64, limit=1000.0)).messages == pytest.approx(1000.0)


def test_separate_pools_limit_throughput_separately() -> None:
    own = network(1000, environments=Pool(2, 4, 100.0), workers=Pool(2, 1, 250.0))
    assert solve(own).messages == pytest.approx(2e6 / 250, rel=0.01)
    more = network(1000, environments=Pool(2, 4, 100.0), workers=Pool(2, 3, 250.0))
    assert solve(more).messages == pytest.approx(6e6 / 250, rel=0.02)


def test_one_action_per_rollout_is_blocked_by_learning() -> None:
    no_wait = Waiting(0.0, 10.0)
    found = Solution(1.0, 1.0, act=200.0, blocked=1000.0, worker=no_wait, client=no_wait, rollout=20)
    assert found.quantile(0.5) == pytest.approx(200.0, abs=0.01)
    assert found.quantile(0.94) == pytest.approx(200.0, abs=0.01)
    assert found.quantile(0.99) == pytest.approx(1200.0, abs=0.01)


def test_wait_for_core_is_exponential() -> None:
    one, no_wait = Waiting(1.0, 50.0), Waiting(0.0, 50.0)
    found = Solution(1.0, 1.0, act=100.0, blocked=0.0, worker=one, client=no_wait, rollout=1)
    assert found.quantile(0.5) == pytest.approx(100 + 50 * math.log(2), rel=1e-3)
    assert found.quantile(0.99) == pytest.approx(100 + 50 * math.log(100), rel=1e-3)
    seldom = Solution(1.0, 1.0, act=100.0, blocked=0.0, worker=Waiting(0.1, 50.0), client=no_wait, rollout=1)
    assert seldom.quantile(0.5) == pytest.approx(100.0, abs=0.01)
    assert seldom.quantile(0.99) == pytest.approx(100 + 50 * math.log(10), rel=1e-3)


def test_two_waits_add_up() -> None:
    """Erlang's distribution of two stages: median 1.678, 99th percentile 6.638 of one stage's mean."""
    one, two = Waiting(1.0, 100.0), Waiting(1.0, 100.0001)
    for client in (one, two):
        found = Solution(1.0, 1.0, act=0.0, blocked=0.0, worker=one, client=client, rollout=1)
        assert found.quantile(0.5) == pytest.approx(167.8, rel=1e-2)
        assert found.quantile(0.99) == pytest.approx(663.8, rel=1e-2)
    apart = Solution(1.0, 1.0, act=0.0, blocked=0.0, worker=one, client=Waiting(1.0, 1e-3), rollout=1)
    assert apart.quantile(0.99) == pytest.approx(100 * math.log(100), rel=1e-3)


def test_pool_at_capacity_has_infinite_wait() -> None:
    pool = Pool(2, 3, 100.0)
    assert pool.capacity == pytest.approx(60_000.0)
    assert pool.waiting(0.0, 10).mean == 0.0
    assert pool.waiting(30_000.0, 1000).mean > pool.waiting(10_000.0, 1000).mean > 0.0
    assert math.isinf(pool.waiting(70_000.0, 1000).mean)
    assert pool.waiting(59_000.0, 3).mean == 0.0, "a single connection on each machine does not wait"


def test_measurement_with_64_connections_is_reproduced() -> None:
    """Study `speed`: 64 connections of CartPole made 4,192 steps/s. Actions took 12.2 ms at p50 and 63 ms at p99."""
    each = 2e6 / 4192
    pool = Pool(2, 1, each, 2.05)
    found = solve(network(64, client=150.0, act=150.0, learn=1000.0, rollout=20, environments=pool, workers=pool))
    assert found.messages == pytest.approx(4192, rel=0.05)
    assert found.quantile(0.5) == pytest.approx(12_200, rel=0.3)
    assert found.quantile(0.99) == pytest.approx(63_000, rel=0.3)


def test_learning_within_period_does_not_block_actions() -> None:
    held = network(1, period=1e5, learn=10_000.0)
    assert solve(held).blocked == 0.0
    assert solve(replace(held, overlap=False)).blocked == 10_000.0
    longer = solve(replace(held, learn=2e5))
    assert longer.blocked == pytest.approx(2e5 - (1e5 - 350)), "the rest of learning when the message arrives"


def test_action_time_includes_the_client() -> None:
    assert solve(network(1, asking=30.0)).act == 30 + 200 + 50
