"""Environments without gymnasium, for `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from relaax import rlx
from relaax.client.connection.failure import EnvironmentFault
from relaax.client.connection.values import flag_of, require_final, reward_of, values_of
from relaax.rlx.value_mismatch import ValueMismatch


class World(Protocol):
    """The interface of one environment in `Worlds`."""

    @property
    def observation_space(self) -> Any:
        """The observation space."""

    @property
    def action_space(self) -> Any:
        """The action space."""

    def restart(self) -> Any:
        """Begin an episode. Return its first observation."""

    def do(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Take a step with an action. Return observation, reward, terminated and truncated."""


class Worlds:
    """A vector of N environments (`World`) for `run`, with any spaces.

    `make`: a function that returns a World, which uses the given random generator. `count`: N. `seed`: seed of the
    first environment; the next ones get the following numbers. Observations and actions are values of the spaces: an
    int for Discrete, an array for Box, MultiBinary and MultiDiscrete, a tuple or a dict of these for Tuple and Dict.

    Observations are copied immediately. A terminated episode may end without an observation (None), a truncated
    episode may not. `reset` and `step` raise EnvironmentFault for an invalid outcome.
    """

    autoreset_mode = "disabled"  # `reset` with a mask starts the next episodes

    def __init__(self, make: Callable[[np.random.Generator], World], count: int, seed: int | None = None) -> None:
        self.num_envs = count
        self._rngs = [np.random.default_rng(None if seed is None else seed + i) for i in range(count)]
        self._worlds = [make(rng) for rng in self._rngs]
        self.single_observation_space = self._worlds[0].observation_space
        self.single_action_space = self._worlds[0].action_space
        self._seen, self._act = values_of(self.single_observation_space), values_of(self.single_action_space)
        self._leaves: list[rlx.Leaves] = [[]] * count

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in each environment, or only where `options["reset_mask"]` (bool [N]) is true.

        `seed`: new seed of the first environment's random generator, as in `Worlds`; None to continue. Return the
        observations of all environments, and empty infos.
        """
        for i, world in enumerate(self._worlds):
            if options is None or options["reset_mask"][i]:
                if seed is not None:
                    self._rngs[i].bit_generator.state = np.random.default_rng(seed + i).bit_generator.state
                self._keep(i, world.restart())
        return self._observations(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take a step with a batch of actions. Return observations, and rewards, terminated, truncated of shape [N]."""
        batch = self._act.to_leaves(actions, 1)
        outcomes = [
            self._outcome(i, world.do(self._act.from_leaves(iter([leaf[i : i + 1] for leaf in batch]), True)))
            for i, world in enumerate(self._worlds)
        ]
        rewards, terminated, truncated = (np.array(part) for part in zip(*outcomes, strict=True))
        return self._observations(), rewards, terminated, truncated, {}

    def _outcome(self, index: int, outcome: Sequence[Any]) -> tuple[float, bool, bool]:
        """Copy the observation of an outcome. Return reward, terminated and truncated."""
        observation, reward, terminated, truncated = outcome
        try:
            part = reward_of(reward), flag_of("terminated", terminated), flag_of("truncated", truncated)
            require_final(observation, *part[1:])
        except ValueError as error:
            raise EnvironmentFault(f"environment {index} of {self.num_envs}: {error}") from None
        if observation is not None or not part[1]:
            self._keep(index, observation)
        return part

    def _keep(self, index: int, observation: Any) -> None:
        """Copy the observation of one environment, which may reuse its arrays."""
        try:
            self._leaves[index] = [np.array(leaf) for leaf in self._seen.to_leaves(observation, 0)]
        except ValueMismatch as mismatch:
            what = f"the observation of environment {index} of {self.num_envs} is not in its space"
            raise EnvironmentFault(f"{what}: {mismatch}") from None

    def _observations(self) -> Any:
        return self._seen.from_leaves(iter([np.stack(column) for column in zip(*self._leaves, strict=True)]), False)
