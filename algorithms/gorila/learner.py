"""The learner of gorila (Nair et al. 2015) and of apex (Horgan et al. 2018)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import LearnerBase, LearnerContext, Mask, Pulled, Sampled
from relaax.algorithm_base.acting.exploration import LinearAnnealing
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.network import agent_statistics
from relaax.algorithm_base.normalization import Normalization
from relaax.algorithm_base.transitions import NEXT_VALID, batch_outliers, priorities_of
from relaax.algorithm_base.values import HeldOutStates, ValueLoss, greedy_values, one_step_targets
from relaax.nn.engine import Engine, make_engine

from .._value_based.model import action_values, value_network
from .model import ReplayConfig

Array = npt.NDArray[np.float32]


class Learner(LearnerBase):
    """The learner of Nair et al. 2015 (Algorithm 1) and of Horgan et al. 2018 (Algorithm 2): deep Q-learning.

    y_i = R_i + discount_i * max_a Q(s'_i, a; target), or its double estimate, where R_i is the discounted sum of n
    rewards. It pushes the gradient of the batch mean of w_i * loss(Q(s_i, a_i) - y_i). The importance weights w_i
    correct for prioritised sampling (Schaul et al. 2016, section 3.4). The new priorities are |Q(s_i, a_i) - y_i|.
    """

    def __init__(self, config: ReplayConfig, context: LearnerContext) -> None:
        super().__init__(config, context)
        self._q = action_values(config, context.action_space)
        spec = value_network(config, context.observation_space, self._q)
        self._layout = config.layout(context.observation_space)
        statistics = agent_statistics(config, context.observation_space)
        self._normalization = Normalization(statistics, config.rewards_gamma, 0, context.metrics, spec.pixels)
        dtype = self._normalization.input_dtype(self._layout.dtype)
        self._online = make_engine(spec, dtype, (1, config.batch_size))
        self._target = make_engine(spec, dtype, (1, None))
        self._beta = LinearAnnealing(
            config.importance_exponent, config.final_importance_exponent, config.max_global_step
        )
        self._held_out = HeldOutStates(config.held_out_states)
        self._target_parameters: Array | None = None
        self._outliers: Mask | None = None  # of the newest batch
        self.exchange = Exchange(config, context)
        """The exchange with the parameter server. A bundling agent adds its steps, which the next push counts."""
        self._use(self.exchange.pull())

    @property
    def batch_size(self) -> int:
        size: int = self.config.batch_size
        return size

    def step(self, sampled: Sampled) -> None:
        loss, gradient = self._gradient(sampled)
        if self.config.prioritized:
            if self._outliers is not None:
                loss.errors[self._outliers] = 0  # outliers get the lowest priority
            priorities = priorities_of(loss.errors, self.config.priority_offset)
            self.context.replay.update_priorities(sampled, priorities)
        means = loss.means
        self.exchange.push_later(gradient, means["loss"], means | self._held_out_value(sampled.columns))

    def finish(self) -> None:
        """Wait for the reply to the last push, and use its parameters."""
        pulled = self.exchange.finish()
        if pulled is not None:
            self._use(pulled)

    def _gradient(self, sampled: Sampled) -> tuple[ValueLoss, Array]:
        columns, count = sampled.columns, len(sampled.keys)
        targets = self._targets(columns)
        weights = sampled.importance_weights(self._beta(self.exchange.global_step)) / np.float32(count)
        inputs = self._without_outliers(columns, targets, weights)
        loss = ValueLoss(self._q, self.config.errors, columns["action"], targets, weights)
        no_state, no_restart = np.zeros((count, 0), np.float32), np.zeros((1, count), np.bool_)  # there is no LSTM
        memory = self.context.parameters.gradient_memory()
        return loss, self._online.gradient(inputs[None], no_state, no_restart, loss, memory)

    def _without_outliers(self, columns: Any, targets: Array, weights: Array) -> npt.NDArray[Any]:
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

    def _targets(self, columns: Any) -> Array:
        inputs, used = self._inputs(columns["next_observation"]), self._target_parameters
        target_values = self._values(self._target, inputs)  # while the last push is in flight
        self.finish()
        if self._target_parameters is not used:
            target_values = self._values(self._target, inputs)
        selector = self._values(self._online, inputs) if self.config.double else None
        values = greedy_values(target_values, selector, columns.get(NEXT_VALID))
        rewards = columns["reward"] / np.float32(self._normalization.reward_unit)
        return one_step_targets(rewards, columns["discount"], values)

    def _inputs(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the normalised inputs of a sampled column. The next call overwrites the array of images."""
        return self._normalization.observations(self._layout.to_inputs(column))

    def _values(self, engine: Engine, inputs: npt.NDArray[Any]) -> Array:
        return self._q.values(engine.act(inputs, np.zeros((len(inputs), 0), np.float32))[0])

    def _held_out_value(self, columns: Any) -> dict[str, float]:
        """Return the scalar `q/held_out`, the mean value of the held-out states, if it is due."""
        valid = columns.get(NEXT_VALID)  # with masks, the next observations: their masks are in the memory
        name = "observation" if valid is None else "next_observation"
        self._held_out.add(self._layout.to_inputs(columns[name]), valid)
        held_out = self._held_out.due(time.monotonic())
        if held_out is None:
            return {}
        values = self._values(self._online, self._normalization.observations(held_out))
        return {"q/held_out": float(greedy_values(values, valid=self._held_out.valid).mean())}

    def _use(self, pulled: Pulled) -> None:
        self.pulled = pulled
        self._online.set_parameters(pulled.parameters)
        assert pulled.target is not None, "a gorila learner needs a target network"
        if pulled.target is not self._target_parameters:
            self._target.set_parameters(pulled.target)
            self._target_parameters = pulled.target
        self._normalization.set_statistics(pulled)
