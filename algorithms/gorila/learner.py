"""The learner of gorila (Nair et al. 2015) and of apex (Horgan et al. 2018)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import LearnerContext, Pulled, Sampled
from relaax.algorithm_base.transitions import DEMONSTRATION, NEXT_VALID
from relaax.algorithm_base.values import HeldOutStates, ValueLoss, greedy_values, one_step_targets
from relaax.nn.engine import Engine, make_engine

from .._replay.learner import Columns, ReplayLearner
from .._value_based.model import action_values, value_network
from .model import DeepQConfig

Array = npt.NDArray[np.float32]


class Learner(ReplayLearner):
    """The learner of Nair et al. 2015 (Algorithm 1) and of Horgan et al. 2018 (Algorithm 2): deep Q-learning.

    y_i = R_i + discount_i * max_a Q(s'_i, a; target), or its double estimate, where R_i is the discounted sum of n
    rewards. It pushes the gradient of the batch mean of w_i * loss(Q(s_i, a_i) - y_i). The importance weights w_i
    correct for prioritised sampling (Schaul et al. 2016, section 3.4). The new priorities are |Q(s_i, a_i) - y_i|. With
    `demonstration_weight`, the loss has the margin of Hester et al. 2018 (see `ValueLoss`).
    """

    def __init__(self, config: DeepQConfig, context: LearnerContext) -> None:
        self._q = action_values(config, context.action_space)
        spec = value_network(config, context.observation_space, self._q)
        super().__init__(config, context, spec.pixels, mean_in_network=True)
        self._shape = spec.inputs
        self._online = make_engine(spec, self._dtype, (1, config.batch_size))
        self._target = make_engine(spec, self._dtype, (1, None))
        self._held_out = HeldOutStates(config.held_out_states)
        self._target_parameters: Array | None = None
        self._mean: Array | None = None  # the mean image of the target network
        self._has_margins = config.demonstration_weight > 0
        self._use(self.exchange.pull())

    def _gradient(self, sampled: Sampled) -> tuple[Array, Array, dict[str, float]]:
        columns = sampled.columns
        targets = self._targets(columns)
        weights = self._weights(sampled)
        inputs = self._without_outliers(columns, targets, weights)
        margins = np.float32(self.config.demonstration_weight) * columns[DEMONSTRATION] if self._has_margins else None
        loss = ValueLoss(self._q, self.config.errors, columns["action"], targets, weights, margins)
        gradient = self._gradient_of(self._online, inputs, loss, self.context.parameters.gradient_memory())
        return gradient, loss.errors, loss.means | self._held_out_value(columns)

    def _targets(self, columns: Columns) -> Array:
        inputs, used = self._inputs(columns["next_observation"]), self._target_parameters
        target_values = self._values(self._target, inputs)  # while the last push is in flight
        self.finish()
        if self._target_parameters is not used:
            target_values = self._values(self._target, inputs)
        selector = self._values(self._online, inputs) if self.config.double else None
        values = greedy_values(target_values, selector, columns.get(NEXT_VALID))
        return one_step_targets(self._rewards(columns), columns["discount"], values)

    def _values(self, engine: Engine, inputs: npt.NDArray[Any]) -> Array:
        return self._q.values(self._outputs(engine, inputs))

    def _held_out_value(self, columns: Columns) -> dict[str, float]:
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
        super()._use(pulled)
        mean = self._normalization.mean_image(self._shape)
        self._online.set_parameters(pulled.parameters, mean)
        assert pulled.target is not None, "a gorila learner needs a target network"
        if pulled.target is not self._target_parameters or mean is not self._mean:
            self._target.set_parameters(pulled.target, mean)
            self._target_parameters, self._mean = pulled.target, mean
