"""The learner of Ape-X DPG: its targets and its losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import LearnerContext, Pulled
from relaax.nn.engine import Loss, Outputs, make_engine

from .._continuous.learner import ContinuousLearner
from .._continuous.model import MEAN, POLICY, joined_inputs
from .config import Config

Array = npt.NDArray[np.float32]


class Learner(ContinuousLearner):
    """Ape-X DPG (Horgan et al. 2018, section 3.2): deterministic policy gradients (Lillicrap et al. 2016).

    Critic: y_i = R_i + discount_i Q(s'_i, pi(s'_i; target); target), where R_i is the discounted sum of n rewards.
    Policy: -Q(s_i, pi(s_i)), with the derivative of Q by the action clipped.
    """

    def __init__(self, config: Config, context: LearnerContext) -> None:
        super().__init__(config, context, {})
        self._target_policy = make_engine(self._networks.policy, self._dtype, (1, None))
        self._use(self.exchange.pull())

    def _next_values(self, inputs: npt.NDArray[Any]) -> Array:
        actions = np.tanh(self._outputs(self._target_policy, inputs)[MEAN])
        values: Array = self._outputs(self._target_critic, joined_inputs(inputs, actions))["q"][:, 0]
        return values

    def _policy_loss(self, inputs: npt.NDArray[Any], weights: Array, sums: dict[str, float]) -> Loss:
        sums["loss/policy"] = 0.0
        bound = np.inf if self.config.action_gradient_clipping is None else self.config.action_gradient_clipping

        def loss(outputs: Outputs, part: slice) -> dict[str, Array]:
            actions, share = np.tanh(outputs[MEAN]), weights[part][:, None]

            def minus_value(values: Outputs, _: slice) -> dict[str, Array]:
                """Return the derivative of the sum over the batch of -Q."""
                sums["loss/policy"] -= float(np.vdot(share, values["q"]))
                return {"q": np.full_like(values["q"], -1)}

            by_inputs = self._critic.input_gradient(joined_inputs(inputs[part], actions), minus_value)
            by_actions = np.clip(by_inputs[:, -self._networks.actions :], -bound, bound)
            return {MEAN: share * by_actions * (1 - actions * actions)}

        return loss

    def _use(self, pulled: Pulled) -> None:
        super()._use(pulled)
        self._target_policy.set_parameters(self._target_parts[POLICY])
