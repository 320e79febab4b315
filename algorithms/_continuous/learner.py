"""The learner of the algorithms with real actions: critics by their targets, and a policy by its critics."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import LearnerContext, Pulled, Sampled
from relaax.algorithm_base.values import one_step_targets
from relaax.nn.engine import Engine, Loss, Outputs, make_engine

from .._replay.learner import Columns, ReplayLearner
from .model import CRITIC, POLICY, ContinuousConfig, Networks, joined_inputs

Array = npt.NDArray[np.float32]


class CriticLoss:
    """The loss of the critics: the sum over them, and over a batch, of w_i (Q(s_i, a_i) - y_i)^2 / 2.

    `value` is the sum over the batch of w_i Q(s_i, a_i), as a mean over the critics.

    An engine calls it with the outputs of some examples (head -> float32 [B, 1]). `targets`, `weights`: float32 [B].
    """

    def __init__(self, targets: Array, weights: Array) -> None:
        self._targets, self._weights = targets, weights
        self.errors: Array = np.zeros_like(targets)
        """The mean over the critics of |Q(s_i, a_i) - y_i|, of the examples so far, float32 [B]."""
        self.loss = self.value = 0.0

    def __call__(self, outputs: Outputs, part: slice) -> dict[str, Array]:
        weights, derivatives = self._weights[part], {}
        for head, values in outputs.items():
            errors = values[:, 0] - self._targets[part]
            self.errors[part] += np.abs(errors) / np.float32(len(outputs))
            self.loss += 0.5 * float(np.dot(weights, errors * errors))
            self.value += float(np.dot(weights, values[:, 0])) / len(outputs)
            derivatives[head] = (weights * errors)[:, None]
        return derivatives


class ContinuousLearner(ReplayLearner):
    """A learner of critics and a policy, with gradients in one vector. A subclass has the targets and the losses.

    Targets are computed while the last push is in flight, so with networks that are one update older.
    """

    def __init__(self, config: ContinuousConfig, context: LearnerContext, further: dict[str, int]) -> None:
        """`further`: numbers after the networks, by name."""
        self._networks = networks = Networks(config, context.observation_space, context.action_space)
        super().__init__(config, context, networks.policy.pixels)
        self._layout_of_vector = networks.layout(further)
        size = config.batch_size
        self._policy = make_engine(networks.policy, self._dtype, (1, size))
        self._critic = make_engine(networks.critic, np.float32, (1, size))
        self._target_critic = make_engine(networks.critic, np.float32, (1, None))
        self._rng = np.random.default_rng([context.seed, context.learner])

    @abstractmethod
    def _next_values(self, inputs: npt.NDArray[Any]) -> Array:
        """Return the values of the next observations, float32 [B]. `inputs`: [B, ...], normalised."""

    @abstractmethod
    def _policy_loss(self, inputs: npt.NDArray[Any], weights: Array, sums: dict[str, float]) -> Loss:
        """Return the loss of the policy. It adds sums with the `weights`, float32 [B], to `sums`, by metric."""

    def _gradient(self, sampled: Sampled) -> tuple[Array, Array, dict[str, float]]:
        columns = sampled.columns
        targets = self._targets(columns)  # while the last push is in flight
        self.finish()
        weights = self._weights(sampled)
        inputs = self._without_outliers(columns, targets, weights)
        gradient = self._memory()
        parts = self._layout_of_vector.views(gradient)
        critic_loss = CriticLoss(targets, weights)
        by_critic = joined_inputs(inputs, columns["action"])
        self._write(parts[CRITIC], self._critic, by_critic, critic_loss)
        sums = {"q/mean": critic_loss.value}
        self._write(parts[POLICY], self._policy, inputs, self._policy_loss(inputs, weights, sums))
        self._write_further(parts)
        total = float(weights.sum()) or 1.0
        means = {name: value / total for name, value in sums.items()}
        return gradient, critic_loss.errors, {"loss": critic_loss.loss, "loss/critic": critic_loss.loss, **means}

    def _targets(self, columns: Columns) -> Array:
        values = self._next_values(self._inputs(columns["next_observation"]))
        return one_step_targets(self._rewards(columns), columns["discount"], values)

    def _write_further(self, parts: dict[str, Array]) -> None:
        """Write the gradient by the numbers after the networks."""

    def _memory(self) -> Array:
        memory = self.context.parameters.gradient_memory()
        return np.empty(self._layout_of_vector.size, np.float32) if memory is None else memory

    def _write(self, out: Array, engine: Engine, inputs: npt.NDArray[Any], loss: Loss) -> None:
        """Write the gradient of a loss over a batch to `out`."""
        gradient = self._gradient_of(engine, inputs, loss, out)
        if gradient is not out:
            out[...] = gradient

    def _use(self, pulled: Pulled) -> None:
        super()._use(pulled)
        self._parts = self._layout_of_vector.views(pulled.parameters)
        self._policy.set_parameters(self._parts[POLICY])
        self._critic.set_parameters(self._parts[CRITIC])
        assert pulled.target is not None, "the parameter server keeps target networks of these algorithms"
        self._target_parts = self._layout_of_vector.views(pulled.target)
        self._target_critic.set_parameters(self._target_parts[CRITIC])
