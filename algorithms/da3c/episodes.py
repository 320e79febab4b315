"""Whole episodes, one update for each (Mnih et al. 2016, section 9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Mask, StepResult
from relaax.algorithm_base.ragged import RaggedRollout
from relaax.algorithm_base.rollout import Trajectories
from relaax.nn.distributions import Distribution
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]

INITIAL_LENGTH = 256


class Episodes(RaggedRollout):
    """The current episodes of N environments.

    It is full when an episode has ended or has `longest` steps. A batch is one environment's episode, [T, 1, ...] with
    T its length. Episodes that end in the same step make one batch: after separate updates, the second gradient would
    be computed on parameters that did not choose its actions. The other episodes continue. The capacity grows with the
    longest episode.
    """

    row = None
    """A batch seldom has all environments."""

    def __init__(
        self,
        longest: int,
        environments: int,
        spec: NetworkSpec,
        input_dtype: Any,
        policy: Distribution,
        *,
        mask_size: int = 0,
    ) -> None:
        capacity = min(INITIAL_LENGTH, longest + 1)
        super().__init__(longest, environments, spec, input_dtype, policy, mask_size=mask_size, capacity=capacity)
        self._ended: Mask = np.zeros(environments, np.bool_)

    @property
    def full(self) -> bool:
        return bool(self._ended.any()) or super().full

    def clear(self) -> None:
        super().clear()
        self._ended[:] = False

    def outcome(self, step: StepResult, rewards: npt.NDArray[Any], gamma: float, final_values: Array | None) -> None:
        super().outcome(step, rewards, gamma, final_values)
        self._ended[:] = step.ended
        if self._steps.max() == len(self._rewards):
            self._grow()

    def take(self, expected: Array | None = None) -> Trajectories:
        taken = super().take(expected)
        self._ended[:] = False
        return taken

    def _ready(self) -> Mask:
        ready: Mask = self._ended | (self._steps >= self.length)
        return ready
