"""An agent within the process that knows nothing, to run environments without a server."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.failure import EnvironmentFault
from relaax.client.values import values_of

_STREAM = (1,)
"""Spawn key of the agent's random numbers. An environment with the same seed draws from the stream without a key."""


class RandomAgent:
    """Has the methods of `Client` (`environments` None) and of `VectorClient` that act, and acts at random.

    Actions are drawn evenly from the action space; elements of a Box that have no bounds, from -1 to 1.
    """

    def __init__(self, action_space: Any, environments: int | None = None, seed: int | None = None) -> None:
        self._values = values_of(action_space)
        self._single = environments is None
        self._environments = environments or 1
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_STREAM))

    def __enter__(self) -> RandomAgent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def init(self, states: Any) -> Any:
        """Return the first actions."""
        return self._act()

    def step(self, rewards: Any, states: Any, *ends: Any, **more: Any) -> Any:
        """Return the next actions."""
        return self._act()

    def send(self, reward: float, state: Any, **more: Any) -> Any:
        """Return the next action."""
        return self._act()

    def reset(self, reward: float, **more: Any) -> None:
        """End the episode; nothing is learned from it."""

    def _act(self) -> Any:
        leaves = [self._draw(element) for element in self._values.space.elements()]
        return self._values.take(iter(leaves), self._single)

    def _draw(self, space: rlx.ElementarySpace) -> npt.NDArray[Any]:
        shape = (self._environments, *space.shape)
        if isinstance(space, rlx.Discrete):
            return self._rng.integers(0, space.n, shape) + space.start
        if isinstance(space, rlx.MultiDiscrete):
            return self._rng.integers(0, space.nvec, shape)
        if not isinstance(space, rlx.Box):
            return self._rng.integers(0, 2, shape)
        low, high = np.maximum(space.low, -1e9), np.minimum(space.high, 1e9)
        low = np.where(np.isfinite(space.low), low, np.minimum(-1, high))
        high = np.where(np.isfinite(space.high), high, np.maximum(1, low))
        return self._rng.uniform(low, high, shape).astype(space.dtype)


class CheckingAgent(RandomAgent):
    """A RandomAgent that refuses states which are not in the observation space. Raises EnvironmentFault."""

    def __init__(self, observation_space: Any, action_space: Any, environments: int | None, seed: int | None) -> None:
        super().__init__(action_space, environments, seed)
        self._observe = values_of(observation_space)

    def init(self, states: Any) -> Any:
        """Return the first actions."""
        self._check(states)
        return super().init(states)

    def step(self, rewards: Any, states: Any, *ends: Any, **more: Any) -> Any:
        """Return the next actions."""
        self._check(states)
        return super().step(rewards, states, *ends, **more)

    def _check(self, states: Any) -> None:
        try:
            self._observe.leaves(states, 0 if self._single else 1)
        except ValueError as error:
            raise EnvironmentFault(f"the observations are not in their space: {error}") from None
