"""The agent of async_sarsa."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.rollout import RolloutSteps
from relaax.algorithm_base.values import one_step_targets, values_of

from ..async_q.value_agent import ValueAgent

Array = npt.NDArray[np.float32]


class Agent(ValueAgent):
    """Asynchronous one-step Sarsa (Mnih et al. 2016, section 4).

    y_t = r_t + gamma * Q(s_{t+1}, a_{t+1}; target) with a_{t+1} the action that is taken there; r_t alone if the
    episode terminated. If it was cut off no action follows, and a_{t+1} is one that the policy would have taken.
    """

    name = "async_sarsa"

    def _targets(self, rollout: RolloutSteps) -> Array:
        following = self._target_values(rollout.inputs[1:])
        return one_step_targets(rollout.rewards, rollout.discounts, values_of(following, rollout.actions[1:]))

    def _final_values(self, q: Array, inputs: npt.NDArray[Any], state: Array) -> Array:
        return values_of(q, self._chosen(self._online_values(inputs, state)))
