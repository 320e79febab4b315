"""Queueing: how fast a closed circle of connections turns, and how long an action takes.

A connection is a customer: its environments step, a message goes to its worker, actions come back. Each way somebody is
woken and waits for a core, first come, first served. While its worker learns, its environments step; if they are back
first, they wait. The circle is solved by approximate mean value analysis (Schweitzer 1979): who comes to a pool of
utilization rho finds (n - 1) / n of its queue; c cores are one that is c times as fast, and a delay (Seidmann et al.
1987).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

STEPS = 60


class Waiting(NamedTuple):
    """What somebody who is woken waits for a core: with probability `share`, exponentially, `long` us on average."""

    share: float
    long: float

    @property
    def mean(self) -> float:
        """Return the mean over all, those that do not wait among them."""
        return self.share * self.long if self.share else 0.0

    def beyond(self, us: float) -> float:
        """Return the probability of waiting longer than that, of those who wait."""
        return math.exp(-us / self.long) if self.long > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Processors that share work: `copies` machines with so many cores each.

    `us`: microseconds of a core that one message of a connection takes here, learning included, in so many `bursts`.
    """

    cores: float
    copies: int
    us: float
    bursts: float = 1.0

    @property
    def most(self) -> float:
        """Return the messages per second that keep all cores busy."""
        return math.inf if self.us <= 0 else 1e6 * self.cores * self.copies / self.us

    def waiting(self, messages: float, connections: int) -> Waiting:
        """Return what a burst waits at so many messages per second.

        With f = (n - 1) / n for the n connections of one machine and bursts of s: f rho wait, (s / c) / (1 - f rho) us.
        """
        own = max(1.0, connections / self.copies)
        busy = (own - 1.0) / own * messages / self.most
        if busy >= 1.0:
            return Waiting(1.0, math.inf)
        return Waiting(busy, self.us / self.bursts / self.cores / (1.0 - busy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    """One message's way. Times in microseconds, alone.

    `client`: the environments' step and their client; `act`: from the message to the actions; `learn`: of a rollout, in
    one piece, and the exchange with the parameter server; `delay`: what is nobody's processor time; `rollout`: messages
    between two of these pieces; `period`: between two messages at least, 0 for as fast as it goes.
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
    """Of `client`, what is a part of the action's time."""
    limit: float = math.inf
    """Messages per second that servers which all share can answer."""


@dataclass(frozen=True, slots=True)
class Turning:
    """How the circle turns: messages per second of all, microseconds of a whole round, and an action's time.

    `act`: an action's time without waiting; `blocked`: what the one in `rollout` actions takes longer that finds the
    worker learning; `worker`, `client`: what each waits for a core when it is woken.
    """

    messages: float
    round: float
    act: float
    blocked: float
    worker: Waiting
    client: Waiting
    rollout: int

    def quantile(self, share: float) -> float:
        """Return the time in microseconds that `share` of all actions do not exceed."""
        longest = sum(waiting.long for waiting in (self.worker, self.client) if waiting.share)
        if math.isinf(longest):
            return math.inf
        low, high = 0.0, self.act + self.blocked + 40.0 * longest + 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._beyond(middle) > 1.0 - share else (low, middle)
        return high

    def _beyond(self, time: float) -> float:
        """Return the probability that an action takes longer."""
        cases = ((1.0 - 1.0 / self.rollout, self.act), (1.0 / self.rollout, self.act + self.blocked))
        return sum(share * (1.0 if time < begin else self._waits_beyond(time - begin)) for share, begin in cases)

    def _waits_beyond(self, time: float) -> float:
        """Return the probability that both waits together are longer."""
        one, two = self.worker, self.client
        found = one.share * (1.0 - two.share) * one.beyond(time) + two.share * (1.0 - one.share) * two.beyond(time)
        both = one.share * two.share
        if not both:
            return found
        if math.isclose(one.long, two.long, rel_tol=1e-6):
            return found + both * (1.0 + time / one.long) * one.beyond(time)
        return found + both * (one.long * one.beyond(time) - two.long * two.beyond(time)) / (one.long - two.long)


def turn(circle: Circle) -> Turning:
    """Return how fast it turns: N = X R(X), where X is at most N / period and what pools and servers can do."""
    most = min(circle.environments.most, circle.workers.most, circle.limit)
    if circle.period > 0:
        most = min(most, 1e6 * circle.connections / circle.period)
    low, high = 0.0, most
    if _round(circle, most)[0] * most > 1e6 * circle.connections:
        for _ in range(STEPS):
            middle = (low + high) / 2
            too_fast = _round(circle, middle)[0] * middle > 1e6 * circle.connections
            low, high = (low, middle) if too_fast else (middle, high)
    else:
        low = most
    _, blocked = _round(circle, low)
    whole = 1e6 * circle.connections / low if low > 0 else math.inf
    client, worker = _waits(circle, low)
    return Turning(low, whole, circle.asking + circle.act + circle.delay, blocked, worker, client, circle.rollout)


def _waits(circle: Circle, messages: float) -> tuple[Waiting, Waiting]:
    """Return what the client waits for a core, and the worker."""
    pools = (circle.environments, circle.workers)
    client, worker = (pool.waiting(messages, circle.connections) for pool in pools)
    return client, worker


def _round(circle: Circle, messages: float) -> tuple[float, float]:
    """Return the length of a round, and what an action after learning is blocked."""
    client, worker = _waits(circle, messages)
    if math.isinf(client.mean) or math.isinf(worker.mean):
        return math.inf, math.inf
    away = client.mean + circle.client + circle.delay
    through = away + worker.mean + circle.act
    free = max(away, circle.period - through) if circle.overlap else 0.0
    blocked = max(0.0, circle.learn - free)
    return through + blocked / circle.rollout, blocked
