"""Hold environments to a rate, as those that run in real time are held by the world."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Paced:
    """An agent that hands actions over at most `rate` times a second.

    An environment that waits for them then takes at most so many steps a second; N that are stepped together take that
    many each. What is late is not caught up with: after a pause there is no burst. The wait comes after the agent has
    answered, so a measured latency has no part of it.
    """

    def __init__(
        self,
        agent: Any,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not 0 < rate < float("inf"):
            raise ValueError(f"rate is {rate}: give a number of steps per second above 0, or None for no limit")
        self._agent = agent
        self._period = 1.0 / rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def __enter__(self) -> Paced:
        self._agent.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._agent.__exit__(kind, error, tb)

    def init(self, states: Any) -> Any:
        """Return the first action of an episode when it is due."""
        return self._held(self._agent.init(states))

    def send(self, *outcome: Any, **more: Any) -> Any:
        """Return the next action of one environment when it is due."""
        return self._held(self._agent.send(*outcome, **more))

    def step(self, *outcome: Any, **more: Any) -> Any:
        """Return the next actions of N environments when they are due."""
        return self._held(self._agent.step(*outcome, **more))

    def reset(self, *outcome: Any, **more: Any) -> Any:
        """End an episode: a step, and no action to wait for."""
        return self._agent.reset(*outcome, **more)

    def _held(self, actions: Any) -> Any:
        now = self._clock()
        if now < self._due:
            self._sleep(self._due - now)
        self._due = max(self._due, now) + self._period
        return actions
