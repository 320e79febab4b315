"""The agent of da3c_cont: Algorithm S3 of Mnih et al. 2016 with Gaussian policies (section 9)."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, Leaves, Pulled, Space, StepResult
from relaax.algorithm_base.actions import real_refusal
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.inputs import Inputs
from relaax.algorithm_base.network import actor_critic_network, actor_critic_refusal
from relaax.algorithm_base.policy_graph import PolicyGraph
from relaax.algorithm_base.rollout import Batch, Rollout
from relaax.nn.engine import Actor, Engine, make_actor, make_engine

from .._actor_critic.loss import ActorCriticLoss
from .episodes import Episodes
from .model import Config

_log = logging.getLogger(__name__)
Array = npt.NDArray[np.float32]


class Agent(AgentBase):
    """One actor-learner over N environments at once: an update is a rollout, or with `whole_episodes` an episode.

    With `overlap` it acts once more before an update, and updates while the environments step. So the first action of a
    rollout is that of a policy one update older. All else of that step is of the newest parameters, and its advantage
    counts as much less as the newest policy is less likely to act so: the importance weight of Espeholt et al. 2018,
    truncated at 1. Without that weight, an LSTM does not learn where learning is fast.
    """

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        self._actions_of = config.actions(context.action_space)
        if sentence := self._actions_of.unused_bounds():
            _log.warning("%s", sentence)
        self._policy = self._actions_of.policy
        spec = actor_critic_network(config, context.observation_space, self._policy)
        self._inputs = Inputs(config, context, spec)
        made: type[Rollout | Episodes] = Episodes if config.whole_episodes else Rollout
        length = config.longest_episode if config.whole_episodes else config.episode_len
        self._rollout = made(length, context.environments, spec, self._inputs.dtype, self._policy)
        self._engine: Engine | None = None
        if not context.exploit:
            self._engine = make_engine(spec, self._inputs.dtype, self._rollout.batch_shape)
        self._actor: Actor = self._engine or make_actor(spec, self._inputs.dtype)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._exchange = Exchange(config, context)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        sentence = real_refusal(action_space)
        if sentence:
            return f"da3c_cont cannot handle the action space {action_space}; {sentence}"
        return actor_critic_refusal("da3c_cont", config, observation_space, config.actions(action_space).policy)

    def reset(self, observations: Leaves) -> Leaves:
        self._rollout.clear()
        self._exchange.env_steps = 0
        self._inputs.reset(observations)
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        if self.context.exploit:
            self._use(self._exchange.pull_if_old())
        else:
            self.learn()  # unless the caller has done so already
            rewards = self._inputs.clipped_rewards(step)
            final = self._inputs.cut_off(step)  # where an episode was truncated: it would have gone on
            values = None if final is None else self._values(self._inputs.normalized(final), self._inputs.state_after)
            self._rollout.outcome(step, rewards, self.config.rewards_gamma, values)
            self._exchange.env_steps += step.env_steps
        self._inputs.next(step)
        if not self.config.overlap and self._rollout.full:
            # R = V(s_t), and the gradients from there back: lines "R = ..." to the end of Algorithm S3.
            self._update(
                self._rollout.batch(self._values(self._inputs.newest, self._inputs.state), self.config.gae_lambda)
            )
        return self._act()

    def learn(self) -> None:
        """Update from a full rollout, with `overlap`. The inputs of the last action end it, and begin the next one."""
        rollout = self._rollout
        if self.context.exploit or not rollout.full:
            return
        then = self._policy.log_probability(self._outputs, self._actions)
        self._update(rollout.batch(None, self.config.gae_lambda))
        outputs, self._inputs.state_after = self._actor.act(rollout.newest(), self._inputs.state, rollout.row)
        now = self._policy.log_probability(outputs, self._actions)
        with np.errstate(all="ignore"):  # what is not finite is found where it is pushed to
            weights = np.exp(np.minimum(now - then, 0.0)).astype(np.float32)
        rollout.begin_next(outputs["value"][:, 0], weights)

    def policy_graph(self) -> PolicyGraph:
        parameters = self.context.parameters.pull().parameters
        return self._inputs.policy_graph(parameters, tuple(self._policy.heads), self._actions_of.greedy())

    def _act(self) -> Leaves:
        """Perform a_t according to policy pi(a_t | s_t)."""
        inputs, exploit = self._inputs, self.context.exploit
        outputs, inputs.state_after = self._actor.act(
            inputs.newest, inputs.state, None if exploit else self._rollout.row
        )
        if exploit and self.config.greedy_exploit:
            actions = self._policy.mode(outputs)
        else:
            actions = self._policy.sample(outputs, self._rng)
        self._outputs, self._actions = outputs, actions
        if not exploit:
            self._rollout.act(inputs.newest, actions, outputs["value"][:, 0], inputs.state, inputs.restart)
        return self._actions_of(actions)

    def _values(self, inputs: npt.NDArray[Any], state: Array) -> Array:
        return self._actor.act(inputs, state)[0]["value"][:, 0]

    def _update(self, batch: Batch) -> None:
        """Push the gradient of the loss over a rollout, and use the parameters that come back."""
        if not batch.mask.any():  # nothing but void transitions
            self._use(self._exchange.push(None))
            return
        assert self._engine is not None, "an agent in exploit mode does not learn"
        loss = ActorCriticLoss(self.config, self._policy, batch)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(batch.inputs, batch.state, batch.restart, loss, memory)
        scalars = loss.means
        whole = scalars.pop("loss")
        self._use(self._exchange.push(gradient, whole, scalars))

    def _use(self, pulled: Pulled | None) -> None:
        """Act by new parameters, if there are any."""
        if pulled is not None:
            self._actor.set_parameters(pulled.parameters)
            self._inputs.pulled(pulled)
