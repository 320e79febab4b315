"""The learner of all algorithms with replay memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import LearnerBase, LearnerContext, Mask, Pulled, Sampled
from relaax.algorithm_base.acting.exploration import LinearAnnealing
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.network import agent_statistics
from relaax.algorithm_base.normalization import Normalization
from relaax.algorithm_base.transitions import batch_outliers, priorities_of
from relaax.nn.engine import Actor, Engine, Loss, Outputs

from .model import ReplayConfig

Array = npt.NDArray[np.float32]
Columns = Mapping[str, npt.NDArray[Any]]


class ReplayLearner(LearnerBase):
    """A learner from samples of replay memory. A subclass computes the gradient.

    It pushes each gradient without waiting for the reply. New priorities are the sizes of the errors.
    """

    def __init__(
        self, config: ReplayConfig, context: LearnerContext, pixels: int, mean_in_network: bool = False
    ) -> None:
        """`pixels`: the number of a network input's pixels (`NetworkSpec.pixels`).

        `mean_in_network`: whether networks subtract the mean image (see `Normalization`).
        """
        super().__init__(config, context)
        self._layout = config.layout(context.observation_space)
        statistics = agent_statistics(config, context.observation_space)
        self._normalization = Normalization(
            statistics, config.rewards_gamma, 0, context.metrics, pixels, mean_in_network
        )
        self._dtype = self._normalization.input_dtype(self._layout.dtype)
        self._beta = LinearAnnealing(
            config.importance_exponent, config.final_importance_exponent, config.max_global_step
        )
        self._outliers: Mask | None = None  # of the newest batch
        self.exchange = Exchange(config, context)
        """The exchange with the parameter server. A bundling agent adds its steps, which the next push counts."""

    @property
    def batch_size(self) -> int:
        size: int = self.config.batch_size
        return size

    def step(self, sampled: Sampled) -> None:
        gradient, errors, scalars = self._gradient(sampled)
        if self.config.prioritized:
            if self._outliers is not None:
                errors[self._outliers] = 0  # outliers get the lowest priority
            self.context.replay.update_priorities(sampled, priorities_of(errors, self.config.priority_offset))
        self.exchange.push_later(gradient, scalars["loss"], scalars)

    def finish(self) -> None:
        """Wait for the reply to the last push, and use its parameters."""
        pulled = self.exchange.finish()
        if pulled is not None:
            self._use(pulled)

    @abstractmethod
    def _gradient(self, sampled: Sampled) -> tuple[Array, Array, dict[str, float]]:
        """Return the gradient, the errors of the values (float32 [B]), and the scalars to record, `loss` among them.

        The push before is still in flight; `finish` waits for its reply.
        """

    def _use(self, pulled: Pulled) -> None:
        """Use new parameters. A subclass sets those of its networks."""
        self.pulled = pulled
        self._normalization.set_statistics(pulled)

    def _outputs(self, actor: Actor, inputs: npt.NDArray[Any]) -> Outputs:
        return actor.act(inputs, np.zeros((len(inputs), 0), np.float32))[0]  # there is no LSTM

    def _gradient_of(self, engine: Engine, inputs: npt.NDArray[Any], loss: Loss, out: Array | None) -> Array:
        """Return the gradient of a loss over a batch, float32 [P]. `inputs`: [B, ...]. `out`: see `Engine.gradient`."""
        count = len(inputs)
        no_state, no_restart = np.zeros((count, 0), np.float32), np.zeros((1, count), np.bool_)  # there is no LSTM
        return engine.gradient(inputs[None], no_state, no_restart, loss, out)

    def _weights(self, sampled: Sampled) -> Array:
        """Return the importance weights divided by the number of examples, float32 [B]."""
        return sampled.importance_weights(self._beta(self.exchange.global_step)) / np.float32(len(sampled.keys))

    def _rewards(self, columns: Columns) -> Array:
        """Return the n-step rewards in the normalised unit, float32 [B]."""
        rewards: Array = columns["reward"] / np.float32(self._normalization.reward_unit)
        return rewards

    def _inputs(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the normalised inputs of a sampled column. The next call overwrites the array of images."""
        return self._normalization.observations(self._layout.to_inputs(column))

    def _without_outliers(self, columns: Columns, targets: Array, weights: Array) -> npt.NDArray[Any]:
        """Return the inputs with outliers set to zero. Give outliers weight 0 and scale up the other weights."""
        inputs, count = self._inputs(columns["observation"]), len(targets)
        is_unbounded = not self._layout.frames and not self._normalization.bounds_inputs
        checked = (columns["observation"], columns["next_observation"]) if is_unbounded else ()
        self._outliers = outliers = batch_outliers(targets, *checked)
        masked = 0 if outliers is None else int(np.count_nonzero(outliers))
        self.context.metrics.scalar("replay/masked", masked / count)
        if outliers is None:
            return inputs
        targets[outliers] = weights[outliers] = 0
        weights *= np.float32(count / max(1, count - masked))
        inputs = inputs.copy()
        inputs[outliers] = 0
        return inputs
