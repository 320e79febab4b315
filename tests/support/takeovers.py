"""Environments in which a person takes the controls at random."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import Leaves, Space, StepResult
from relaax.algorithm_base.testing import sample

from .lives import Lives


class TakenOver(Lives):
    """Lives whose environments take random actions instead of the agent's, each with a probability of `share`.

    The decisions have the actions that were taken. `chosen`: the observations, as bytes, of the decisions that were not
    the agent's. In rows that are not chosen, the actions of a step are 99 or NaN.
    """

    def __init__(self, space: Space, actions: Space, seeds: list[int], share: float, idle: float = 0.0) -> None:
        super().__init__(space, seeds, idle)
        self._actions, self._share = actions, share
        self._controls = np.random.default_rng(7)
        self.chosen: set[bytes] = set()

    def step(self, actions: Leaves) -> StepResult:
        before = [len(decisions) for decisions in self.decisions]
        step = super().step(actions)
        chosen = np.zeros(self.n, np.bool_)
        own = [leaf.copy() for leaf in sample(self._actions, self.n, self._controls)]
        for i, decisions in enumerate(self.decisions):
            if len(decisions) > before[i] and self._controls.random() < self._share:
                chosen[i] = True
                decisions[-1].action = own[0][i].copy()
                self.chosen.add(decisions[-1].observation[0].tobytes())
        for leaf in own:
            leaf[~chosen] = np.nan if leaf.dtype.kind == "f" else 99
        if chosen.any():
            step.chosen, step.actions = chosen, own
        return step
