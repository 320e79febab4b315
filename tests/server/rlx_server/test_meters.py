"""Tests of the rate limits of clients with a simulated clock, exact to the step."""

from __future__ import annotations

import heapq

import pytest

from relaax.server.rlx_server.clients import meters
from relaax.server.rlx_server.clients.meters import BURST_SECONDS, Meter, Meters

RATE = 40.0
LAB, ROOM = 0, 1
PACE = 0.001


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meters, "time", clock)
    return clock


def simulate_steps(clock: Clock, connections: list[tuple[Meter, int]], seconds: float, pace: float) -> list[int]:
    """Return the steps of connections that send each message as soon as the previous one is answered.

    A connection is a meter and a number of environments. A message takes `pace` seconds plus the delay of the quota.
    """
    start, steps = clock.now, [0] * len(connections)
    due = [(clock.now, index) for index in range(len(connections))]
    while due:
        clock.now, index = heapq.heappop(due)
        meter, environments = connections[index]
        end = clock.now + meter.charge(environments, 0) + pace
        if end <= start + seconds:
            steps[index] += environments
            heapq.heappush(due, (end, index))
    clock.now = start + seconds
    return steps


def test_connections_of_one_client_share_its_rate_exactly(clock: Clock) -> None:
    shared = Meters(rows=3, buckets=2)
    shared.set_rates(LAB, RATE, None)
    first, second, other = (shared.meter(row, bucket) for row, bucket in ((0, LAB), (1, LAB), (2, ROOM)))
    steps = simulate_steps(clock, [(first, 4), (second, 30), (other, 4)], 12.0, PACE)
    assert steps[0] + steps[1] == pytest.approx(RATE * (12.0 + BURST_SECONDS), abs=34)
    assert min(steps[:2]) > 24, "both connections make progress"
    assert steps[2] == pytest.approx(4 * 12.0 / PACE, abs=4), "the other client is not delayed"


def test_unused_rate_is_kept_only_up_to_the_burst(clock: Clock) -> None:
    shared = Meters(rows=1, buckets=1)
    shared.set_rates(0, RATE, None)
    meter = shared.meter(0, 0)
    for _ in range(2):
        clock.now += 100.0
        (steps,) = simulate_steps(clock, [(meter, 4)], 12.0, PACE)
        assert steps == pytest.approx(RATE * (12.0 + BURST_SECONDS), abs=4)
