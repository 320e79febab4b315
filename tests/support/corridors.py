"""A task whose best policy needs discounting, bootstrapping and correct ends of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaax.algorithm_base import Discrete, Leaves, Mask, StepResult
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm

LEAVE, WALK = 0, 1
LEAVE_REWARD = 0.45
LENGTHS = (3, 8)
GAMMA = 0.8


class Corridors:
    """N environments with two corridors, of 3 and of 8 places. The observation is the corridor and the place in it.

    The action LEAVE gives 0.45 at once. The action WALK gives 1 at the last place. Both terminate the episode, and the
    final observation is the first place of the corridor. With discount 0.8, walking from the first place to the end is
    worth 0.8^2 = 0.64 in the short corridor and 0.8^7 = 0.21 in the long one. So
    the best policy walks through the short corridor and leaves the long one.

    - Without a discount, walking is best in both corridors.
    - Without bootstrapping at the end of a rollout of two steps and at a truncation, leaving is best in both. `cut` is
      the probability that a step of walking is truncated.
    - If a terminated episode were continued from its final observation, leaving for ever would be worth
      0.45/(1 - 0.8) = 2.25, and walking the short corridor for ever 0.64/(1 - 0.8^3) = 1.3. So leaving would be best in
      both.

    Episodes begin at a random place. Environments of odd index use Autoreset.NEXT_STEP, the others SAME_STEP.
    """

    observation_space = Discrete(sum(LENGTHS))
    action_space = Discrete(2)

    def __init__(self, environments: int, seed: int, cut: float = 0.3) -> None:
        self._rng = np.random.default_rng(seed)
        self.environments = environments
        self._cut = cut
        self._next_step = np.arange(environments) % 2 == 1
        self._void = np.zeros(environments, np.bool_)
        self._corridor = self._rng.integers(0, 2, environments)
        self._place = np.zeros(environments, np.int64)

    def reset(self) -> Leaves:
        self._void = np.zeros(self.environments, np.bool_)
        self._begin(~self._void)
        return self._observe()

    def step(self, actions: Leaves) -> StepResult:
        first, acting = self._void, ~self._void
        walks = acting & (actions[0] == WALK)
        leaves = acting & ~walks
        self._place += walks
        through = walks & (self._place == np.array(LENGTHS)[self._corridor])
        terminated = leaves | through
        truncated = walks & ~through & (self._rng.random(self.environments) < self._cut)
        self._place[terminated] = 0
        ended = terminated | truncated
        final = self._observe()
        self._begin((ended & ~self._next_step) | first)
        self._void = ended & self._next_step
        rewards = LEAVE_REWARD * leaves + 1.0 * through
        return StepResult(rewards, self._observe(), terminated, truncated, first, final if ended.any() else None)

    def _begin(self, where: Mask) -> None:
        corridor = self._rng.integers(0, 2, self.environments)
        self._corridor = np.where(where, corridor, self._corridor)
        somewhere = self._rng.integers(0, np.array(LENGTHS)[self._corridor])
        self._place = np.where(where, somewhere, self._place)

    def _observe(self) -> Leaves:
        return [self._corridor * LENGTHS[0] + self._place]


def best_actions() -> dict[int, int]:
    """Return, by place, the action of greatest discounted return. Places with a difference below 0.1 are absent."""
    worth = [GAMMA ** (length - 1 - place) for length in LENGTHS for place in range(length)]
    return {
        place: WALK if value > LEAVE_REWARD else LEAVE
        for place, value in enumerate(worth)
        if abs(value - LEAVE_REWARD) > 0.1
    }


def greedy_actions(algorithm: Algorithm, config: Any, parameters: np.ndarray) -> list[int]:
    """Return the actions of an agent in exploit mode, by place: first the short corridor, then the long one."""
    places = np.arange(sum(LENGTHS))
    agent, _ = make_agent(
        algorithm,
        config,
        Corridors.observation_space,
        Corridors.action_space,
        environments=len(places),
        exploit=True,
        parameters=FakeParameters(parameters),
    )
    actions: list[int] = agent.reset([places])[0].tolist()
    return actions
