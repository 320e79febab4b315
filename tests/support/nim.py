"""A game for two players who take turns."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaax.algorithm_base import Discrete, Leaves, StepResult
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm

HEAP = 7
BEST = {2: 1, 4: 0, 5: 1, 7: 0}
"""The action that leaves a multiple of 3, by heap. For other heaps, both actions are equally good."""


class Nim:
    """Games of Nim: environments 2g and 2g + 1 are the players of game g, which both learn.

    A player takes one stone (action 0) or two (action 1). The player who takes the last one wins 1 and the other loses
    1. The observation is the heap. A player who leaves a multiple of 3 wins in the end. To learn this, a player needs
    the observation and the reward after the opponent's move.

    While the opponent moves, a player is idle, and its void reward and observation make action 0 look best: 1 and a
    heap of 1, which wins. After action 1 they are -1 and a heap of 3, which loses. A random player begins each game. At
    the end both players leave, or one begins the next game in the same step.
    """

    observation_space = Discrete(HEAP, start=1)
    action_space = Discrete(2)

    def __init__(self, games: int, seed: int) -> None:
        self.environments = 2 * games
        self._rng = np.random.default_rng(seed)
        self._heaps = np.zeros(games, np.int64)
        self._movers = np.zeros(games, np.int64)  # environments
        self._last = np.zeros(self.environments, np.int64)  # last actions
        self._playing = np.zeros(self.environments, np.bool_)

    def reset(self) -> Leaves:
        self._playing[:] = False
        for game in range(len(self._heaps)):
            self._begin(game)
        observations = np.ones(self.environments, np.int64)
        observations[self._movers] = self._heaps
        self._playing[self._movers] = True
        return [observations]

    def step(self, actions: Leaves) -> StepResult:
        movers, was_playing = self._movers.copy(), self._playing.copy()
        self._last[movers] = actions[0][movers]
        self._heaps = np.maximum(self._heaps - 1 - actions[0][movers], 0)
        over = np.repeat(self._heaps == 0, 2)
        terminated = over & was_playing
        rewards = 1.0 - 2 * self._last
        observations = np.where(self._last == 0, 1, 3)
        others = movers ^ 1
        rewards[others] = -1.0 * over[others]
        rewards[movers[over[movers]]] = 1.0
        self._playing[over] = False
        self._movers = others
        for game in np.flatnonzero(over[::2]):
            self._begin(int(game))
        idle = np.ones(self.environments, np.bool_)
        idle[self._movers] = False
        observations[self._movers] = self._heaps
        first = ~was_playing & ~idle
        self._playing |= ~idle
        rewards[~was_playing] = 1.0
        nothing = np.zeros(self.environments, np.bool_)
        final = [np.full(self.environments, HEAP)] if terminated.any() else None
        return StepResult(rewards, [observations], terminated, nothing, first, final, idle)

    def _begin(self, game: int) -> None:
        self._heaps[game] = self._rng.integers(1, HEAP + 1)
        self._movers[game] = 2 * game + self._rng.integers(2)


def greedy_takes(algorithm: Algorithm, config: Any, trained: FakeParameters) -> dict[int, int]:
    """Return the actions of an agent in exploit mode for the heaps of `BEST`."""
    heaps = np.array([*BEST])
    statistics = {name: moments.size for name, moments in trained.statistics.items()}
    agent, _ = make_agent(
        algorithm,
        config,
        Nim.observation_space,
        Nim.action_space,
        environments=len(heaps),
        exploit=True,
        parameters=FakeParameters(trained.parameters, statistics=statistics),
    )
    return dict(zip(BEST, agent.reset([heaps])[0].tolist(), strict=True))
