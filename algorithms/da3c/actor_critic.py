"""What da3c and da3c_cont have in common: an agent that acts, gathers experience and pushes gradients."""

from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    AgentBase,
    AgentContext,
    LargestOutput,
    Leaves,
    Mask,
    PolicyGraph,
    Pulled,
    ScaledOutput,
    StepResult,
)
from relaax.algorithm_base.network import history
from relaax.algorithm_base.normalization import Normalization, reward_bound
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.algorithm_base.rollout import Batch, Experience, Rollout
from relaax.nn.distributions import Distribution
from relaax.nn.engine import make_actor, make_engine
from relaax.nn.specification import NetworkSpec
from relaax.optim.clipping import clip_by_norm

from .config import Config
from .loss import ActorCriticLoss
from .network import actor_critic, statistics

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]

EXPLOIT_PULL_SECONDS = 1.0


class ActorCritic(AgentBase):
    """One actor-learner of Mnih et al. 2016, Algorithm S3, over N environments at once.

    With `overlap` it acts once more before an update, and updates while the environments step. So the first action of a
    rollout is that of a policy one update older. All else of that step is of the newest parameters, and its advantage
    counts as much less as the newest policy is less likely to act so: the importance weight of Espeholt et al. 2018,
    truncated at 1. Without that weight, da3c_cont with an LSTM does not learn where learning is fast.

    An observation is encoded, normalised and given to the network, whose outputs a `Distribution` reads; experience
    keeps it as the network was given it. An algorithm says what its actions are (`_leaves`), and may say which
    experience makes a batch (`_experience_of`).
    """

    def __init__(self, config: Config, context: AgentContext, policy: Distribution) -> None:
        super().__init__(config, context)
        n = context.environments
        self._spec = spec = actor_critic(config, context.observation_space, policy)
        self._policy = policy
        frames = history(config.history_len, context.observation_space)
        self._encoder = ObservationEncoder(context.observation_space, n, frames)
        normalized = statistics(config, context.observation_space)
        self._normalization = Normalization(normalized, config.rewards_gamma, n, context.metrics)
        self._input_dtype = dtype = self._normalization.input_dtype(self._encoder.dtype)
        self._experience = self._experience_of(spec)
        self._engine = None if context.exploit else make_engine(spec, dtype, self._experience.batch_shape)
        self._actor = self._engine or make_actor(spec, dtype)
        self._clip = reward_bound(config.reward_clipping, context.observation_space)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._inputs: Inputs = np.zeros(0)
        self._restart: Mask = np.ones(n, np.bool_)  # where the inputs start an episode
        self._state: Array = np.zeros((n, spec.state_size), np.float32)  # what the LSTM remembers before the inputs
        self._state_after = self._state  # and after them
        self._env_steps = 0  # not pushed yet
        self._pushes = 0  # since parameters were pulled
        self._pull()

    def reset(self, observations: Leaves) -> Leaves:
        self._experience.clear()
        self._normalization.reset()
        self._env_steps = 0
        self._see(self._encoder.reset(observations), np.ones_like(self._restart))
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        training = not self.context.exploit
        if training:
            self.learn()  # where nobody has asked for it
            self._normalization.gather(step)
            self._experience.outcome(step, self._clipped(step), self.config.rewards_gamma, self._final_values(step))
            self._env_steps += step.env_steps
        self._see(self._encoder.push(step.observations, step.restart), step.restart)
        if training:
            if not self.config.overlap and self._experience.full:
                self._update(functools.partial(self._values, self._inputs, self._state))
        elif time.monotonic() - self._pulled_at > EXPLOIT_PULL_SECONDS:
            self._pull()
        return self._act()

    def learn(self) -> None:
        """An update, where one is due: what was acted on last ends its rollout, and begins the next."""
        if self.context.exploit or not self._experience.full:
            return
        then = self._policy.log_probability(self._outputs, self._actions)
        self._update(None)
        outputs, self._state_after = self._actor.act(self._experience.newest(), self._state, self._experience.row)
        now = self._policy.log_probability(outputs, self._actions)
        with np.errstate(all="ignore"):  # what is not finite is found where it is pushed to
            weights = np.exp(np.minimum(now - then, 0.0)).astype(np.float32)
        self._experience.look_again(outputs["value"][:, 0], weights)

    def policy_graph(self) -> PolicyGraph:
        mean, std = self._normalization.mean_and_std(self._spec.inputs)
        return PolicyGraph(
            self._spec,
            self.context.parameters.pull().parameters,
            tuple(self._policy.heads),
            self._greedy(),
            self._encoder.history,
            mean,
            std,
        )

    @abstractmethod
    def _greedy(self) -> LargestOutput | ScaledOutput:
        """Return how the most probable action follows from the outputs."""

    @abstractmethod
    def _leaves(self, actions: npt.NDArray[Any]) -> Leaves:
        """Return the policy's actions as leaves of the action space."""

    def _experience_of(self, spec: NetworkSpec) -> Experience:
        """Return the store of experience until it is learned from."""
        return Rollout(self.config.episode_len, self.context.environments, spec, self._input_dtype, self._policy)

    def _take(self, pulled: Pulled) -> None:
        """Use what was pulled from now on."""
        self._actor.set_parameters(pulled.parameters)
        self._normalization.pulled(pulled)
        self._pushes = 0

    def _see(self, inputs: Inputs, restart: Mask) -> None:
        """`inputs` come next; where `restart`, they start an episode, which remembers nothing of the one before."""
        if not self.context.exploit:
            self._normalization.see(inputs)
        self._inputs, self._restart = self._normalization.observations(inputs), restart
        if self._state_after.size:
            self._state = np.where(restart[:, None], np.float32(0), self._state_after)

    def _act(self) -> Leaves:
        keep = None if self.context.exploit else self._experience.row
        self._outputs, self._state_after = outputs, _ = self._actor.act(self._inputs, self._state, keep)
        if self.context.exploit and self.config.greedy_exploit:
            actions = self._policy.mode(outputs)
        else:
            actions = self._policy.sample(outputs, self._rng)
        self._actions = actions
        if not self.context.exploit:
            self._experience.act(self._inputs, actions, outputs["value"][:, 0], self._state, self._restart)
        return self._leaves(actions)

    def _clipped(self, step: StepResult) -> npt.NDArray[Any]:
        rewards = self._normalization.rewards(step)
        return rewards if self._clip is None else np.minimum(np.maximum(rewards, -self._clip), self._clip)

    def _final_values(self, step: StepResult) -> Array | None:
        """Return values of what was cut off, with the history and the state of its episodes; None if nothing was."""
        final = step.cut_off()
        if final is None:
            return None
        inputs = self._normalization.observations(self._encoder.peek(final))
        return self._values(inputs, self._state_after)

    def _values(self, inputs: Inputs, state: Array) -> Array:
        return self._actor.act(inputs, state)[0]["value"][:, 0]

    def _update(self, expected: Callable[[], Array] | None) -> None:
        """`expected`: as for `Experience.batch`."""
        gradient, loss = self._gradient(self._experience.batch(expected, self.config.gae_lambda))
        self._pushes += 1
        fetch = self._pushes >= self.config.sync_interval
        pushed = self.context.parameters.push(gradient, self._env_steps, want_parameters=fetch, loss=loss)
        self._env_steps = 0
        if pushed.pulled is not None:
            self._take(pushed.pulled)

    def _gradient(self, batch: Batch) -> tuple[Array, float] | tuple[None, None]:
        """Return the gradient, and the loss that it is of, as a mean over the steps that count."""
        if not batch.mask.any():
            return None, None  # nothing but void transitions
        assert self._engine is not None, "an agent in exploit mode does not learn"
        loss = ActorCriticLoss(self.config, self._policy, batch)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(batch.inputs, batch.state, batch.restart, loss, memory)
        norm = clip_by_norm(gradient, self.config.gradient_norm_clipping)
        *terms, whole = loss.means.items()
        for name, value in (*terms, ("gradient/norm", norm)):
            self.context.metrics.scalar(name, value)
        return gradient, whole[1]

    def _pull(self) -> None:
        self._take(self.context.parameters.pull())
        self._pulled_at = time.monotonic()
