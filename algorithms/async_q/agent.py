"""The agent of async_q."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.rollout import RolloutSteps
from relaax.algorithm_base.values import greedy_values, one_step_targets

from .value_agent import ValueAgent

Array = npt.NDArray[np.float32]


class Agent(ValueAgent):
    """Asynchronous one-step Q-learning (Mnih et al. 2016, Algorithm 1).

    y_t = r_t + gamma * max_a Q(s_{t+1}, a; target), or the double estimate of it; r_t alone if the episode terminated.
    """

    name = "async_q"

    def _targets(self, rollout: RolloutSteps) -> Array:
        following = self._target_values(rollout.inputs[1:])
        values = greedy_values(following, rollout.values[1:] if self.config.double else None)
        return one_step_targets(rollout.rewards, rollout.discounts, values)

    def _final_values(self, q: Array, inputs: npt.NDArray[Any], state: Array) -> Array:
        return greedy_values(q, self._online_values(inputs, state) if self.config.double else None)
