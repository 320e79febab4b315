"""Two corridors in which only discounting, bootstrapping and a right idea of ends of episodes find the best policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaax.algorithm_base import Discrete, Leaves, Mask, StepResult
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm

LEAVE, WALK = 0, 1
CONSOLATION = 0.45
LENGTHS = (3, 8)
GAMMA = 0.8


class Corridors:
    """N environments. One corridor has 3 places, the other 8; the observation says which place of which corridor.

    To leave gives 0.45 at once. To walk on from the last place gives 1. Both terminate the episode, and what is seen
    then is the first place of the corridor. At discount 0.8 the way through is worth 0.8^2 = 0.64 in the short corridor
    and 0.8^7 = 0.21 in the long one: walk the first, leave the second.

    - Without a discount walking is best in both. Without bootstrapping from where a rollout of two steps or a
      truncation (`cut`: how often a walk is cut off) stopped, leaving is best in both.
    - Were a terminated episode continued from its final observation, leaving for ever would be worth
      0.45/(1 - 0.8) = 2.25, walking the short corridor for ever 0.64/(1 - 0.8^3) = 1.3: leave both.

    Episodes begin at any place. Every second environment ends episodes in the NEXT_STEP way.
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
        rewards = CONSOLATION * leaves + 1.0 * through
        return StepResult(rewards, self._observe(), terminated, truncated, first, final if ended.any() else None)

    def _begin(self, where: Mask) -> None:
        corridor = self._rng.integers(0, 2, self.environments)
        self._corridor = np.where(where, corridor, self._corridor)
        somewhere = self._rng.integers(0, np.array(LENGTHS)[self._corridor])
        self._place = np.where(where, somewhere, self._place)

    def _observe(self) -> Leaves:
        return [self._corridor * LENGTHS[0] + self._place]


def best_actions() -> dict[int, int]:
    """By place: the action of greatest discounted return, where the other is worse by more than 0.1."""
    worth = [GAMMA ** (length - 1 - place) for length in LENGTHS for place in range(length)]
    return {
        place: WALK if value > CONSOLATION else LEAVE
        for place, value in enumerate(worth)
        if abs(value - CONSOLATION) > 0.1
    }


def greedy_actions(algorithm: Algorithm, config: Any, parameters: np.ndarray) -> list[int]:
    """By place, the short corridor's, then the long one's: what an agent with these parameters does in exploit mode."""
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
