"""What async_q, async_sarsa and n_step_q have in common: an agent that acts by action values and pushes gradients."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Leaves, Mask, Pulled, StepResult
from relaax.algorithm_base.exploration import LinearAnnealing, drawn_epsilons
from relaax.algorithm_base.rollout import RolloutSteps
from relaax.algorithm_base.values import HeldOutStates, ValueLoss
from relaax.nn.engine import make_engine

from .action_value_agent import ActionValueAgent, Array, Inputs, no_state
from .config import ValueConfig


class ValueAgent(ActionValueAgent):
    """One actor-learner of Mnih et al. 2016, section 4, over N environments at once.

    It acts epsilon-greedily; every `update_interval` steps, while the environments step, it pushes the gradient of
    (y_t - Q(s_t, a_t))^2, summed over those steps and averaged over the environments. A subclass says what the targets
    y_t are (`_targets`), and what an observation is worth after which an episode was cut off (`_final_values`).

    The first action of a rollout is chosen before the update that ends the one before it, by parameters one update
    older. Its value is computed anew for the gradient.
    """

    def __init__(self, config: ValueConfig, context: AgentContext) -> None:
        super().__init__(config, context)
        n, actions = context.environments, self._q.choices
        self._rollout = RolloutSteps(config.update_interval, n, self._spec, self._input_dtype, value_shape=(actions,))
        self._target = None if context.exploit else make_engine(self._spec, self._input_dtype, (1, None))
        self._drawn_for: range | None = None  # the ranks that final epsilons were drawn for
        self._held_out = HeldOutStates(0 if config.recurrent else config.held_out_states)
        self._target_parameters: Array | None = None
        self._begin(self._rollout)

    def learn(self) -> None:
        """An update, where one is due: what was acted on last ends its rollout, and begins the next."""
        if self.context.exploit or not self._rollout.full:
            return
        rollout = self._rollout
        self._push(*(self._gradient(rollout, self._targets(rollout)) if rollout.mask.any() else (None, None)))
        rollout.begin_next()
        if self._spec.lstm:  # its gradient needs what was computed to act on all rows, the first one too
            outputs, self._state_after = self._actor.act(rollout.inputs[0], self._state, rollout.row)
            rollout.values[0] = self._q.values(outputs)

    def _exploration(self) -> npt.NDArray[np.float64]:
        exploration: npt.NDArray[np.float64] = self._epsilon(self._pulled.frames)
        return exploration

    def _draw_epsilons(self) -> None:
        config, self._drawn_for = self.config, self._ranks
        final = drawn_epsilons(
            self.context.seed, self._drawn_for, config.final_epsilons, config.final_epsilon_probabilities
        )
        self._epsilon = LinearAnnealing(config.initial_epsilon, final, config.exploration_frames)

    @abstractmethod
    def _targets(self, rollout: RolloutSteps) -> Array:
        """Return y_t of a full rollout, whose T + 1 rows have been acted on, float32 [T, N]."""

    @abstractmethod
    def _final_values(self, q: Array, inputs: Inputs, state: Array) -> Array:
        """Return what observations are worth after which the episode would have gone on, float32 [N].

        `q`: the target network's values of them, float32 [N, A].
        """

    def _target_values(self, inputs: Inputs, state: Array | None = None) -> Array:
        """Return the target network's values, float32 [..., A], of inputs [..., *input shape].

        `state`: what an LSTM remembers before them; it may be left out if there is none.
        """
        assert self._target is not None, "an agent in exploit mode has no targets"
        leading = inputs.shape[: inputs.ndim - len(self._spec.inputs)]
        flat = inputs.reshape(-1, *self._spec.inputs)
        outputs, _ = self._target.act(flat, no_state(len(flat)) if state is None else state)
        return self._q.values(outputs).reshape(*leading, -1)

    def _outcome(self, step: StepResult, rewards: npt.NDArray[Any]) -> None:
        inputs = self._cut_off_inputs(step)
        final_values = None
        if inputs is not None:
            final_values = self._final_values(self._target_values(inputs, self._state_after), inputs, self._state_after)
        self._rollout.outcome(step, rewards, self.config.rewards_gamma, final_values)

    def _take(self, pulled: Pulled) -> None:
        super()._take(pulled)
        if self._ranks != self._drawn_for:
            self._draw_epsilons()
        if self._target is not None and pulled.target is not self._target_parameters:
            assert pulled.target is not None, "the parameter server declares a target network"
            self._target.set_parameters(pulled.target)
            self._target_parameters = pulled.target

    def _see(self, inputs: Inputs, restart: Mask) -> None:
        if not self.context.exploit:
            self._held_out.see(inputs)
        super()._see(inputs, restart)

    def _act(self) -> Leaves:
        keep = None if self.context.exploit else self._rollout.row
        outputs, self._state_after = self._actor.act(self._inputs, self._state, keep)
        values = self._q.values(outputs)
        actions = self._chosen(values)
        if not self.context.exploit:
            self._rollout.act(self._inputs, actions, values, self._state, self._restart)
        return [actions + self._first_action]

    def _gradient(self, rollout: RolloutSteps, targets: Array) -> tuple[Array, float]:
        """Return the gradient of the loss, summed over steps and averaged over environments, and the loss's mean."""
        assert self._engine is not None, "an agent in exploit mode does not learn"
        weights = rollout.mask.reshape(-1) / np.float32(rollout.mask.shape[1])
        loss = ValueLoss(self._q, self.config.errors, rollout.actions[:-1].reshape(-1), targets.reshape(-1), weights)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(rollout.inputs[:-1], rollout.states[0], rollout.restart[:-1], loss, memory)
        means = loss.means
        scalars = means | {"epsilon": float(np.mean(self._exploration()))}
        inputs = self._held_out.due(time.monotonic())
        if inputs is not None:
            values = self._online_values(self._normalization.observations(inputs), no_state(len(inputs)))
            scalars["q/held_out"] = float(values.max(axis=1).mean())
        return self._clipped(gradient, scalars), means["loss"]
