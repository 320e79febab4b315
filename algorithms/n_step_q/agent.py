"""The agent of n_step_q."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.rollout import RolloutSteps
from relaax.algorithm_base.values import greedy_values, n_step_returns

from ..async_q.value_agent import ValueAgent

Array = npt.NDArray[np.float32]


class Agent(ValueAgent):
    """Asynchronous n-step Q-learning (Mnih et al. 2016, Algorithm S2).

    y_t is the discounted sum of the rewards from t to the rollout's end, and what the best action is worth after it: of
    the rollout's last step one reward, of its first as many as it is long. If an episode terminated nothing follows.
    """

    name = "n_step_q"

    def _targets(self, rollout: RolloutSteps) -> Array:
        following = self._target_values(rollout.newest(), rollout.states[1])
        bootstrap_value = greedy_values(following, rollout.values[-1] if self.config.double else None)
        return n_step_returns(rollout.rewards, rollout.discounts, bootstrap_value)

    def _final_values(self, q: Array, inputs: npt.NDArray[Any], state: Array) -> Array:
        return greedy_values(q, self._online_values(inputs, state) if self.config.double else None)
