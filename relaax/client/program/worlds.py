"""Simulations without gymnasium, for `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from relaax import rlx
from relaax.client.connection.failure import EnvironmentFault
from relaax.client.connection.values import flag_of, require_final, reward_of, values_of
from relaax.rlx.misfit import Misfit


class World(Protocol):
    """The methods that `Worlds` needs of one world."""

    @property
    def observation_space(self) -> Any:
        """Its space of observations."""

    @property
    def action_space(self) -> Any:
        """Its space of actions."""

    def restart(self) -> Any:
        """Begin an episode; return its first observation."""

    def do(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Carry out an action: observation, reward, terminated, truncated."""


class Worlds:
    """N worlds that are stepped together: a vector of environments for `run`, of any spaces.

    `make`: makes a world that draws its random numbers from this generator; `count`: N; `seed`: of the first world,
    whose followers have the next ones. Observations and actions are values of one world's spaces: an int for Discrete,
    an array for Box, MultiBinary and MultiDiscrete, a tuple or a dict of such for Tuple and Dict.

    Observations are copied as soon as a world hands them out. A terminated episode may end without one (None), a
    truncated one may not. `reset` and `step` raise EnvironmentFault for an outcome that cannot be used.
    """

    autoreset_mode = "disabled"  # `reset` with a mask begins the next episodes

    def __init__(self, make: Callable[[np.random.Generator], World], count: int, seed: int | None = None) -> None:
        self.num_envs = count
        self._worlds = [make(np.random.default_rng(None if seed is None else seed + i)) for i in range(count)]
        self.single_observation_space = self._worlds[0].observation_space
        self.single_action_space = self._worlds[0].action_space
        self._seen, self._act = values_of(self.single_observation_space), values_of(self.single_action_space)
        self._leaves: list[rlx.Leaves] = [[]] * count

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every world, or where `options["reset_mask"]`, [N], is true; all observations."""
        for i, world in enumerate(self._worlds):
            if options is None or options["reset_mask"][i]:
                self._keep(i, world.restart())
        return self._observations(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Carry out a batch of actions: observations, and rewards, terminated, truncated of shape [N]."""
        batch = self._act.leaves(actions, 1)
        outcomes = [
            self._outcome(i, world.do(self._act.take(iter([leaf[i : i + 1] for leaf in batch]), True)))
            for i, world in enumerate(self._worlds)
        ]
        rewards, terminated, truncated = (np.array(part) for part in zip(*outcomes, strict=True))
        return self._observations(), rewards, terminated, truncated, {}

    def _outcome(self, index: int, outcome: Sequence[Any]) -> tuple[float, bool, bool]:
        """Keep the observation; return reward, terminated and truncated."""
        observation, reward, terminated, truncated = outcome
        try:
            part = reward_of(reward), flag_of("terminated", terminated), flag_of("truncated", truncated)
            require_final(observation, *part[1:])
        except ValueError as error:
            raise EnvironmentFault(f"world {index} of {self.num_envs}: {error}") from None
        if observation is not None or not part[1]:
            self._keep(index, observation)
        return part

    def _keep(self, index: int, observation: Any) -> None:
        """Copy the observation of one world: the world may reuse its arrays."""
        try:
            self._leaves[index] = [np.array(leaf) for leaf in self._seen.leaves(observation, 0)]
        except Misfit as misfit:
            what = f"the observation of world {index} of {self.num_envs} is not in its space"
            raise EnvironmentFault(f"{what}: {misfit}") from None

    def _observations(self) -> Any:
        return self._seen.take(iter([np.stack(column) for column in zip(*self._leaves, strict=True)]), False)
