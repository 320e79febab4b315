"""What async_q, async_sarsa and n_step_q have in common: an agent that acts by action values and pushes gradients."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    AgentBase,
    AgentContext,
    Discrete,
    LargestOutput,
    Leaves,
    Mask,
    PolicyGraph,
    Pulled,
    Space,
    StepResult,
)
from relaax.algorithm_base.exploration import LinearAnnealing, drawn_epsilons, epsilon_greedy
from relaax.algorithm_base.held_out import HeldOutStates
from relaax.algorithm_base.network import history
from relaax.algorithm_base.normalization import Normalization, reward_bound
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.algorithm_base.rollout import RolloutSteps
from relaax.algorithm_base.value_loss import ValueLoss
from relaax.nn.engine import Actor, make_actor, make_engine
from relaax.optim.clipping import clip_by_norm

from .config import ValueConfig
from .network import action_values, refusal, statistics, value_network

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]

EXPLOIT_PULL_SECONDS = 1.0


class ValueAgent(AgentBase):
    """One actor-learner of Mnih et al. 2016, section 4, over N environments at once.

    It acts epsilon-greedily; every `update_interval` steps, while the environments step, it pushes the gradient of
    (y_t - Q(s_t, a_t))^2, summed over those steps and averaged over the environments. A subclass says what the targets
    y_t are (`_targets`), and what an observation is worth after which an episode was cut off (`_final_values`).

    The first action of a rollout is chosen before the update that ends the one before it, by parameters one update
    older. Its value is computed anew for the gradient.
    """

    name: str
    """Of the algorithm, in sentences."""

    def __init__(self, config: ValueConfig, context: AgentContext) -> None:
        super().__init__(config, context)
        n = context.environments
        assert isinstance(context.action_space, Discrete)  # refused before otherwise
        self._first_action = context.action_space.start
        self._q = action_values(config, context.action_space)
        self._spec = spec = value_network(config, context.observation_space, self._q)
        self._encoder = ObservationEncoder(
            context.observation_space, n, history(config.history_len, context.observation_space)
        )
        normalized = statistics(config, context.observation_space)
        self._normalization = Normalization(normalized, config.rewards_gamma, n, context.metrics)
        dtype = self._normalization.input_dtype(self._encoder.dtype)
        self._rollout = RolloutSteps(config.update_interval, n, spec, dtype, value_shape=(context.action_space.n,))
        self._engine = None if context.exploit else make_engine(spec, dtype, self._rollout.batch_shape)
        self._target = None if context.exploit else make_engine(spec, dtype, (1, None))
        self._actor: Actor = self._engine or make_actor(spec, dtype)
        self._clip = reward_bound(config.reward_clipping, context.observation_space)
        final = drawn_epsilons(context.seed, context.actors, config.final_epsilons, config.final_epsilon_probabilities)
        self._epsilon = LinearAnnealing(config.initial_epsilon, final, config.exploration_frames)
        self._held_out = HeldOutStates(config.held_out_states if 0 in context.actors and not config.recurrent else 0)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._inputs: Inputs = np.zeros(0)
        self._restart: Mask = np.ones(n, np.bool_)  # where the inputs start an episode
        self._state: Array = np.zeros((n, spec.state_size), np.float32)  # what the LSTM remembers before the inputs
        self._state_after = self._state  # and after them
        self._env_steps = 0  # not pushed yet
        self._pushes = 0  # since parameters were pulled
        self._frames = 0
        self._target_parameters: Array | None = None
        self._pull()

    @classmethod
    def refusal(cls, config: ValueConfig, observation_space: Space, action_space: Space) -> str | None:
        return refusal(cls.name, config, observation_space, action_space)

    def reset(self, observations: Leaves) -> Leaves:
        self._rollout.clear()
        self._normalization.reset()
        self._env_steps = 0
        self._see(self._encoder.reset(observations), np.ones_like(self._restart))
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        training = not self.context.exploit
        if training:
            self.learn()  # where nobody has asked for it
            self._normalization.gather(step)
            self._rollout.outcome(step, self._clipped(step), self.config.rewards_gamma, self._values_of_final(step))
            self._env_steps += step.env_steps
        elif time.monotonic() - self._pulled_at > EXPLOIT_PULL_SECONDS:
            self._pull()
        self._see(self._encoder.push(step.observations, step.restart), step.restart)
        return self._act()

    def learn(self) -> None:
        """An update, where one is due: what was acted on last ends its rollout, and begins the next."""
        if self.context.exploit or not self._rollout.full:
            return
        rollout = self._rollout
        gradient, loss = self._gradient(rollout, self._targets(rollout)) if rollout.mask.any() else (None, None)
        self._pushes += 1
        fetch = self._pushes >= self.config.sync_interval
        pushed = self.context.parameters.push(gradient, self._env_steps, want_parameters=fetch, loss=loss)
        self._env_steps = 0
        if pushed.pulled is not None:
            self._take(pushed.pulled)
        rollout.begin_next()

    def policy_graph(self) -> PolicyGraph:
        mean, std = self._normalization.mean_and_std(self._spec.inputs)
        head = "advantage" if self.config.dueling else "q"  # the state's value moves no action before another
        return PolicyGraph(
            self._spec,
            self.context.parameters.pull().parameters,
            tuple(self._q.heads),
            LargestOutput(head, self._first_action),
            self._encoder.history,
            mean,
            std,
        )

    @abstractmethod
    def _targets(self, rollout: RolloutSteps) -> Array:
        """Return y_t of a full rollout, whose T + 1 rows have been acted on, float32 [T, N]."""

    @abstractmethod
    def _final_values(self, q: Array, inputs: Inputs, state: Array) -> Array:
        """Return what observations are worth after which the episode would have gone on, float32 [N].

        `q`: the target network's values of them, float32 [N, A].
        """

    def _online_values(self, inputs: Inputs, state: Array) -> Array:
        """Return the online network's values, float32 [N, A], of inputs [N, ...]."""
        return self._q.values(self._actor.act(inputs, state)[0])

    def _target_values(self, inputs: Inputs, state: Array | None = None) -> Array:
        """Return the target network's values, float32 [..., A], of inputs [..., *input shape].

        `state`: what an LSTM remembers before them; it may be left out if there is none.
        """
        assert self._target is not None, "an agent in exploit mode has no targets"
        leading = inputs.shape[: inputs.ndim - len(self._spec.inputs)]
        flat = inputs.reshape(-1, *self._spec.inputs)
        outputs, _ = self._target.act(flat, _no_state(len(flat)) if state is None else state)
        return self._q.values(outputs).reshape(*leading, -1)

    def _values_of_final(self, step: StepResult) -> Array | None:
        """Return values of what was cut off, with the history and the state of its episodes; None if nothing was."""
        final = step.cut_off()
        if final is None:
            return None
        inputs = self._normalization.observations(self._encoder.peek(final))
        return self._final_values(self._target_values(inputs, self._state_after), inputs, self._state_after)

    def _take(self, pulled: Pulled) -> None:
        """Use what was pulled from now on."""
        self._actor.set_parameters(pulled.parameters)
        self._normalization.pulled(pulled)
        self._frames, self._pushes = pulled.frames, 0
        if self._target is not None and pulled.target is not self._target_parameters:
            assert pulled.target is not None, "the parameter server declares a target network"
            self._target.set_parameters(pulled.target)
            self._target_parameters = pulled.target

    def _see(self, inputs: Inputs, restart: Mask) -> None:
        """`inputs` come next; where `restart`, they start an episode, which remembers nothing of the one before."""
        if not self.context.exploit:
            self._normalization.see(inputs)
        self._inputs, self._restart = self._normalization.observations(inputs), restart
        if self._state_after.size:
            self._state = np.where(restart[:, None], np.float32(0), self._state_after)

    def _act(self) -> Leaves:
        keep = None if self.context.exploit else self._rollout.row
        outputs, self._state_after = self._actor.act(self._inputs, self._state, keep)
        values = self._q.values(outputs)
        actions = self._chosen(values)
        if not self.context.exploit:
            self._rollout.act(self._inputs, actions, values, self._state, self._restart)
            self._held_out.see(self._inputs)
        return [actions + self._first_action]

    def _chosen(self, values: Array) -> npt.NDArray[np.int64]:
        """Return the actions that the policy takes by these values, int64 [N], from 0."""
        if not self.context.exploit:
            return epsilon_greedy(values, self._epsilon(self._frames), self._rng)
        return epsilon_greedy(values, 0.0 if self.config.greedy_exploit else self.config.exploit_epsilon, self._rng)

    def _clipped(self, step: StepResult) -> npt.NDArray[Any]:
        rewards = self._normalization.rewards(step)
        return rewards if self._clip is None else np.minimum(np.maximum(rewards, -self._clip), self._clip)

    def _gradient(self, rollout: RolloutSteps, targets: Array) -> tuple[Array, float]:
        """Return the gradient of the loss, summed over steps and averaged over environments, and the loss's mean."""
        assert self._engine is not None, "an agent in exploit mode does not learn"
        weights = rollout.mask.reshape(-1) / np.float32(rollout.mask.shape[1])
        loss = ValueLoss(self._q, self.config.errors, rollout.actions[:-1].reshape(-1), targets.reshape(-1), weights)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(rollout.inputs[:-1], rollout.states[0], rollout.restart[:-1], loss, memory)
        norm = clip_by_norm(gradient, self.config.gradient_norm_clipping)
        mean = loss.means
        scalars = mean | {"gradient/norm": norm, "epsilon": float(np.mean(self._epsilon(self._frames)))}
        for name, value in scalars.items():
            self.context.metrics.scalar(name, value)
        inputs = self._held_out.due(time.monotonic())
        if inputs is not None:
            values = self._online_values(inputs, _no_state(len(inputs)))
            self.context.metrics.scalar("q/held_out", float(values.max(axis=1).mean()))
        return gradient, mean["loss"]

    def _pull(self) -> None:
        self._take(self.context.parameters.pull())
        self._pulled_at = time.monotonic()


def _no_state(count: int) -> Array:
    """Return what a network without an LSTM remembers of so many inputs."""
    return np.zeros((count, 0), np.float32)
