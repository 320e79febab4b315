"""Partial observations, for tasks whose state is not fully visible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Box

from relaax.client import command


class Observe:
    """A wrapper that keeps the chosen elements of the observation, in this order, of one environment or a vector."""

    def __init__(self, chosen: Sequence[int]) -> None:
        self._chosen = list(chosen)

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        """Wrap one environment. Raises command.UsageError if its observation lacks these elements."""
        space = self.select_space(env.observation_space)
        return gymnasium.wrappers.TransformObservation(env, self._select, space)

    def vector(self, env: gymnasium.vector.VectorEnv) -> gymnasium.vector.VectorEnv:
        """Wrap a vector. Raises command.UsageError if its observation lacks these elements.

        It also raises it for a vector that resets in the step that ends an episode, because gymnasium's wrappers of
        such vectors do not process the final observations.
        """
        space = self.select_space(env.single_observation_space)
        try:
            return gymnasium.wrappers.vector.TransformObservation(env, self._select_all, single_observation_space=space)
        except ValueError as error:
            raise command.UsageError(f"--observe: {error}; --vectorization sync has no such limit") from None

    def select_space(self, space: Any) -> Box:
        """Return the space of the chosen elements. Raises command.UsageError if `space` lacks them."""
        option, last = f"--observe {','.join(map(str, self._chosen))}", max(self._chosen)
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise command.UsageError(f"{option}: the observation is not a vector of numbers, but {space}")
        (size,) = space.shape
        if last >= size:
            raise command.UsageError(f"{option}: there is no element {last}; the observation has 0 to {size - 1}")
        return Box(space.low[self._chosen], space.high[self._chosen], dtype=space.dtype.type)

    def _select(self, observation: Any) -> Any:
        return observation[self._chosen]

    def _select_all(self, observations: Any) -> Any:
        return observations[:, self._chosen]
