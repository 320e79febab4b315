"""The learner of soft actor-critic: its targets and its three losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import LearnerContext
from relaax.nn.engine import Loss, Outputs
from relaax.nn.squashed_gaussian import SquashedSample, sample

from .._continuous.learner import ContinuousLearner
from .._continuous.model import joined_inputs
from .model import LOG_TEMPERATURE, Config

Array = npt.NDArray[np.float32]


class Learner(ContinuousLearner):
    """Soft actor-critic (Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications, Algorithm 1).

    Critics: y_i = R_i + discount_i (min_k Q_k(s'_i, a'; target) - alpha log pi(a' | s'_i)), with a' from the policy
    (equations 5 and 7), where R_i is the discounted sum of n rewards. Policy: alpha log pi(a | s_i) - min_k Q_k(s_i, a)
    with a reparameterised action (equation 9). Temperature: -log alpha (log pi(a | s_i) + target entropy), whose
    derivative has the sign of equation 18's.
    """

    def __init__(self, config: Config, context: LearnerContext) -> None:
        super().__init__(config, context, {LOG_TEMPERATURE: 1})
        entropy = config.target_entropy
        self._target_entropy = -float(self._networks.actions) if entropy is None else entropy
        self._by_log_temperature = 0.0
        self._use(self.exchange.pull())

    @property
    def _temperature(self) -> np.float32:
        return np.float32(np.exp(self._parts[LOG_TEMPERATURE][0]))

    def _next_values(self, inputs: npt.NDArray[Any]) -> Array:
        drawn = self._sample(self._outputs(self._policy, inputs))
        outputs = self._outputs(self._target_critic, joined_inputs(inputs, drawn.actions))
        least: Array = np.minimum(outputs["q1"][:, 0], outputs["q2"][:, 0])
        return least - self._temperature * drawn.log_probability

    def _policy_loss(self, inputs: npt.NDArray[Any], weights: Array, sums: dict[str, float]) -> Loss:
        temperature = self._temperature
        self.context.metrics.scalar("temperature", float(temperature))
        sums |= {"loss/policy": 0.0, "loss/entropy": 0.0}
        self._by_log_temperature = 0.0

        def loss(outputs: Outputs, part: slice) -> dict[str, Array]:
            drawn, share = self._sample(outputs), weights[part]
            least = np.zeros(len(share), np.float32)

            def minus_least(values: Outputs, _: slice) -> dict[str, Array]:
                """Return the derivative of the sum over the batch of -w_i min_k Q_k."""
                first, second = values["q1"][:, 0], values["q2"][:, 0]
                np.minimum(first, second, out=least)
                is_first = first <= second
                return {"q1": -(share * is_first)[:, None], "q2": -(share * ~is_first)[:, None]}

            by_inputs = self._critic.input_gradient(joined_inputs(inputs[part], drawn.actions), minus_least)
            log_probability = drawn.log_probability
            sums["loss/policy"] += float(np.dot(share, temperature * log_probability - least))
            sums["loss/entropy"] -= float(np.dot(share, log_probability))
            self._by_log_temperature -= float(np.dot(share, log_probability + np.float32(self._target_entropy)))
            return drawn.gradient(temperature * share, by_inputs[:, -self._networks.actions :])

        return loss

    def _write_further(self, parts: dict[str, Array]) -> None:
        parts[LOG_TEMPERATURE][0] = self._by_log_temperature if self.config.learn_temperature else 0.0

    def _sample(self, outputs: Outputs) -> SquashedSample:
        return sample(outputs, self._rng.standard_normal(outputs["mean"].shape, np.float32))
