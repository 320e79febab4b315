"""Environments whose episodes do not depend on the actions, played in step or out of step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaax.algorithm_base import AgentBase, Leaves, Space, StepResult
from relaax.algorithm_base.testing import sample


@dataclass
class Decision:
    """An action of an environment, and its outcome. `following`: the next observation, the final one at an end."""

    observation: Leaves
    action: np.ndarray
    starts: bool
    """Whether the observation starts an episode."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    following: Leaves = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class Life:
    """The episodes of one environment: a sequence that is determined by the seed."""

    def __init__(self, space: Space, seed: int, end: float = 0.25) -> None:
        self._space, self._rng, self._end = space, np.random.default_rng(seed), end

    def observe(self) -> Leaves:
        """Return the next observation, leaves [1, ...]."""
        return sample(self._space, 1, self._rng)

    def outcome(self) -> tuple[float, bool, bool]:
        """Return the reward of an action, and whether it terminated or truncated the episode."""
        reward, ended, cut = self._rng.normal(), self._rng.random() < self._end, self._rng.random() < 0.5
        return float(reward), bool(ended and not cut), bool(ended and cut)


class Lives:
    """N environments of one connection, in SAME_STEP mode. `decisions`: the complete ones of each environment.

    `idle`: how often an environment is idle. If it is above 0, environments wait, leave and come, and the outcomes of
    each are delayed but not changed. `leaves`: if false, they only wait. Void rows have rewards of 1e9 and random
    observations.
    """

    def __init__(
        self, space: Space, seeds: list[int], idle: float = 0.0, end: float = 0.25, leaves: bool = True
    ) -> None:
        self._lives = [Life(space, seed, end) for seed in seeds]
        self._void = Life(space, 99)
        self._rng, self._idle, self._leaves = np.random.default_rng(99), idle, leaves
        self.n = len(seeds)
        self.decisions: list[list[Decision]] = [[] for _ in seeds]
        self._open: list[Decision | None] = [None] * self.n
        self._new: list[tuple[int, Leaves, bool]] = []  # observations that want an action

    @property
    def wants_action(self) -> bool:
        """Whether an environment wants an action."""
        return bool(self._new)

    def reset(self) -> Leaves:
        away = self._leaves & (self._rng.random(self.n) < self._idle)
        rows = []
        for i, life in enumerate(self._lives):
            rows.append(self._void.observe() if away[i] else self._want(i, life.observe(), True))
        return _joined(rows)

    def step(self, actions: Leaves) -> StepResult:
        for i, observation, starts in self._new:
            self._open[i] = Decision(observation, actions[0][i], starts)
        self._new = []
        rewards, masks = np.full(self.n, 1e9), np.zeros((4, self.n), np.bool_)
        terminated, truncated, first, unwanted = masks
        rows, finals = [], []
        for i, life in enumerate(self._lives):
            rows.append(self._void.observe())
            finals.append(self._void.observe())
            decision = self._open[i]
            if self._rng.random() < self._idle:
                unwanted[i] = True
            elif decision is None:
                first[i], rows[i] = True, self._want(i, life.observe(), True)
            else:
                rewards[i], terminated[i], truncated[i] = life.outcome()
                decision.reward, decision.terminated, decision.truncated = rewards[i], terminated[i], truncated[i]
                decision.following = life.observe()
                self.decisions[i].append(decision)
                self._open[i] = None
                if not decision.ended:
                    rows[i] = self._want(i, decision.following, False)
                else:
                    finals[i] = decision.following
                    unwanted[i] = self._leaves and self._rng.random() < self._idle
                    if not unwanted[i]:
                        rows[i] = self._want(i, life.observe(), True)
        final = _joined(finals) if (terminated | truncated).any() else None
        mask = unwanted if unwanted.any() else None
        return StepResult(rewards, _joined(rows), terminated, truncated, first, final, mask)

    def _want(self, i: int, observation: Leaves, starts: bool) -> Leaves:
        self._new.append((i, observation, starts))
        return observation


def play(agent: AgentBase, lives: Lives, decisions: int) -> None:
    """Play until each environment has made this number of decisions. Random numbers drawn for nothing are put back.

    That is, after a step in which no environment wants an action, the agent's random numbers continue as before it.
    """
    rng = agent._rng.bit_generator if hasattr(agent, "_rng") else np.random.PCG64()

    def act(call: Callable[[Any], Leaves], argument: Any) -> Leaves:
        before = rng.state
        actions = [leaf.copy() for leaf in call(argument)]
        if not lives.wants_action:
            rng.state = before
        agent.learn()
        return actions

    actions = act(agent.reset, lives.reset())
    while min(map(len, lives.decisions)) < decisions:
        actions = act(agent.step, lives.step(actions))


def _joined(rows: list[Leaves]) -> Leaves:
    return [np.concatenate(leaves) for leaves in zip(*rows, strict=True)]
