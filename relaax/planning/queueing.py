"""A closed queueing network of connections: its throughput, and the time of an action.

A connection is a customer: its environments step, a message goes to its worker, and actions come back. In each
direction a process is woken and waits for a core, first come, first served. While the worker learns, its environments
step. If the environments finish first, they wait for the worker.

The network is solved by approximate mean value analysis (Schweitzer 1979): an arriving customer finds (n - 1) / n of
the queue of a pool with utilization rho. c cores count as one core that is c times as fast, and a delay (Seidmann et
al. 1987).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

STEPS = 60


class Waiting(NamedTuple):
    """Time that a woken process waits for a core: exponentially distributed with probability `share`, else zero."""

    share: float
    mean_if_waiting: float

    @property
    def mean(self) -> float:
        """Return the mean over all processes, with and without waiting."""
        return self.share * self.mean_if_waiting if self.share else 0.0

    def probability_beyond(self, us: float) -> float:
        """Return the probability that a waiting process waits longer than `us`."""
        return math.exp(-us / self.mean_if_waiting) if self.mean_if_waiting > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Processors that share work: `copies` machines of `cores` each.

    `us`: microseconds of a core for one message of a connection, learning included. They are spread over `bursts`.
    """

    cores: float
    copies: int
    us: float
    bursts: float = 1.0

    @property
    def capacity(self) -> float:
        """Return the messages per second that keep all cores busy."""
        return math.inf if self.us <= 0 else 1e6 * self.cores * self.copies / self.us

    def waiting(self, messages: float, connections: int) -> Waiting:
        """Return the waiting time of a burst. `messages`: per second.

        With n connections per machine, f = (n - 1) / n, and bursts of s us: a share f rho of the bursts waits, for
        (s / c) / (1 - f rho) us on average.
        """
        own = max(1.0, connections / self.copies)
        busy = (own - 1.0) / own * messages / self.capacity
        if busy >= 1.0:
            return Waiting(1.0, math.inf)
        return Waiting(busy, self.us / self.bursts / self.cores / (1.0 - busy))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedNetwork:
    """Stations of a message, with times in microseconds without waiting.

    client: the environments' step and their client.
    act: from the message to the actions.
    learn: learning of a whole rollout, and the exchange with the parameter server.
    delay: wake-ups and the network.
    rollout: messages from one learning to the next.
    period: the least time between two messages; 0: as fast as possible.
    """

    connections: int
    client: float
    act: float
    learn: float
    delay: float
    rollout: int
    overlap: bool
    period: float
    environments: Pool
    workers: Pool
    asking: float = 0.0
    """Part of `client` that counts as time of an action."""
    limit: float = math.inf
    """Messages per second that the shared servers can serve."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Throughput and times of a closed network.

    messages: per second, of all connections.
    round: microseconds from one message of a connection to its next.
    act: microseconds of an action without waiting.
    blocked: extra microseconds of the one action in `rollout` that arrives while the worker learns.
    worker, client: time that each waits for a core when it is woken.
    """

    messages: float
    round: float
    act: float
    blocked: float
    worker: Waiting
    client: Waiting
    rollout: int

    def quantile(self, share: float) -> float:
        """Return the time in microseconds within which a share `share` of all actions is done."""
        longest = sum(waiting.mean_if_waiting for waiting in (self.worker, self.client) if waiting.share)
        if math.isinf(longest):
            return math.inf
        low, high = 0.0, self.act + self.blocked + 40.0 * longest + 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._probability_beyond(middle) > 1.0 - share else (low, middle)
        return high

    def _probability_beyond(self, time: float) -> float:
        """Return the probability that an action takes longer than `time` us."""
        cases = ((1.0 - 1.0 / self.rollout, self.act), (1.0 / self.rollout, self.act + self.blocked))
        return sum(
            share * (1.0 if time < begin else self._probability_waiting_beyond(time - begin)) for share, begin in cases
        )

    def _probability_waiting_beyond(self, time: float) -> float:
        """Return the probability that both waits together take longer than `time` us."""
        one, two = self.worker, self.client
        found = one.share * (1.0 - two.share) * one.probability_beyond(time) + two.share * (
            1.0 - one.share
        ) * two.probability_beyond(time)
        both = one.share * two.share
        if not both:
            return found
        if math.isclose(one.mean_if_waiting, two.mean_if_waiting, rel_tol=1e-6):
            return found + both * (1.0 + time / one.mean_if_waiting) * one.probability_beyond(time)
        return found + both * (
            one.mean_if_waiting * one.probability_beyond(time) - two.mean_if_waiting * two.probability_beyond(time)
        ) / (one.mean_if_waiting - two.mean_if_waiting)


def solve(network: ClosedNetwork) -> Solution:
    """Solve N = X R(X) for the throughput X: at most N / period, and at most the capacity of pools and servers."""
    capacity = min(network.environments.capacity, network.workers.capacity, network.limit)
    if network.period > 0:
        capacity = min(capacity, 1e6 * network.connections / network.period)
    low, high = 0.0, capacity
    if _round(network, capacity)[0] * capacity > 1e6 * network.connections:
        for _ in range(STEPS):
            middle = (low + high) / 2
            too_fast = _round(network, middle)[0] * middle > 1e6 * network.connections
            low, high = (low, middle) if too_fast else (middle, high)
    else:
        low = capacity
    _, blocked = _round(network, low)
    whole = 1e6 * network.connections / low if low > 0 else math.inf
    client, worker = _waiting(network, low)
    return Solution(low, whole, network.asking + network.act + network.delay, blocked, worker, client, network.rollout)


def _waiting(network: ClosedNetwork, messages: float) -> tuple[Waiting, Waiting]:
    """Return the time that the client waits for a core, and that of the worker."""
    pools = (network.environments, network.workers)
    client, worker = (pool.waiting(messages, network.connections) for pool in pools)
    return client, worker


def _round(network: ClosedNetwork, messages: float) -> tuple[float, float]:
    """Return the time of a round, and the time for which learning blocks an action."""
    client, worker = _waiting(network, messages)
    if math.isinf(client.mean) or math.isinf(worker.mean):
        return math.inf, math.inf
    outside = client.mean + network.client + network.delay
    answered = outside + worker.mean + network.act
    free = max(outside, network.period - answered) if network.overlap else 0.0
    blocked = max(0.0, network.learn - free)
    return answered + blocked / network.rollout, blocked
