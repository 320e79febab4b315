"""Queueing: how fast a closed circle of connections turns, and how long an action takes.

A connection is a customer: its environments step, a message goes to its worker, actions come back. While its worker
learns, its environments step; if they are back first, they wait. The circle is solved by approximate mean value
analysis (Schweitzer 1979): a customer that arrives at a pool of utilization rho finds (N - 1) / N of its queue; of
several cores as Seidmann et al. 1987 have it, one c times as fast and a delay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

STEPS = 60


@dataclass(frozen=True, slots=True)
class Pool:
    """Processors that share work: `copies` machines with so many cores each.

    `us`: microseconds of a core that one message of a connection takes here, learning included.
    """

    cores: float
    copies: int
    us: float

    @property
    def most(self) -> float:
        """Return the messages per second that keep all cores busy."""
        return math.inf if self.us <= 0 else 1e6 * self.cores * self.copies / self.us

    def stretch(self, messages: float, connections: int) -> float:
        """Return how many times as long work takes here than alone, at so many messages per second.

        s = (1 / c) / (1 - f rho) + (c - 1) / c with f = (n - 1) / n for the n connections of one machine.
        """
        own = max(1.0, connections / self.copies)
        busy = (own - 1.0) / own * messages / self.most
        if busy >= 1.0:
            return math.inf
        return 1.0 / self.cores / (1.0 - busy) + (self.cores - 1.0) / self.cores


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
    """How the circle turns: messages per second of all, microseconds of a whole round, and an action's time."""

    messages: float
    round: float
    act: float
    blocked: float
    wait: float
    """Of an action, the mean of what is waited for a core."""
    rollout: int

    def quantile(self, share: float) -> float:
        """Return the time in microseconds that `share` of all actions do not exceed.

        One in `rollout` actions finds the worker learning and takes `blocked` longer; beyond that an action waits for a
        core, exponentially distributed with the mean `wait`.
        """
        low, high = 0.0, self.act + self.blocked + 40.0 * self.wait + 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._beyond(middle) > 1.0 - share else (low, middle)
        return high

    def _beyond(self, time: float) -> float:
        return sum(
            share * (1.0 if time < begin else math.exp(-(time - begin) / self.wait) if self.wait > 0 else 0.0)
            for share, begin in ((1.0 - 1.0 / self.rollout, self.act), (1.0 / self.rollout, self.act + self.blocked))
        )


def turn(circle: Circle) -> Turning:
    """Return how fast it turns: N = X (R(X) + idle), where X is at most N / period and what the pools can do."""
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
    _, blocked, stretch = _round(circle, low)
    whole = 1e6 * circle.connections / low if low > 0 else math.inf
    return Turning(
        low, whole, circle.asking + circle.act + circle.delay, blocked, circle.act * (stretch - 1.0), circle.rollout
    )


def _round(circle: Circle, messages: float) -> tuple[float, float, float]:
    """Return the length of a round, of it what an action after learning is blocked, and the workers' stretch."""
    at_environments = circle.environments.stretch(messages, circle.connections)
    at_workers = circle.workers.stretch(messages, circle.connections)
    if math.isinf(at_environments) or math.isinf(at_workers):
        return math.inf, math.inf, math.inf
    away = at_environments * circle.client + circle.delay
    through = away + at_workers * circle.act
    learning = at_workers * circle.learn
    free = max(away, circle.period - through) if circle.overlap else 0.0
    blocked = max(0.0, learning - free)
    return through + blocked / circle.rollout, blocked, at_workers
