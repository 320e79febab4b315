"""The agent of da3c: Algorithm S3 of Mnih et al. 2016, for one or several discrete actions at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, Leaves, Pulled, Space, StepResult
from relaax.algorithm_base.actions import DiscreteActions, discrete_refusal
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.inputs import Inputs
from relaax.algorithm_base.network import actor_critic_network, actor_critic_refusal
from relaax.algorithm_base.policy_graph import PolicyGraph
from relaax.algorithm_base.rollout import Batch, Rollout
from relaax.nn.engine import Actor, Engine, make_actor, make_engine

from .._actor_critic.loss import ActorCriticLoss
from .model import Config

Array = npt.NDArray[np.float32]


class Agent(AgentBase):
    """One actor-learner over N environments at once, with a categorical, multi-categorical or Bernoulli policy.

    With `overlap` the agent acts once more before an update, and updates while the environments step. So the first
    action of a rollout is chosen by a policy that is one update older. The likelihood of this action, the value and the
    LSTM's next state are computed again with the newest parameters. The advantage of this step is multiplied by the
    newest likelihood divided by the older one: the importance weight of Espeholt et al. 2018, truncated at 1.
    """

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        self._actions_of = DiscreteActions(context.action_space)
        self._policy = self._actions_of.policy
        spec = actor_critic_network(config, context.observation_space, self._policy)
        self._inputs = Inputs(config, context, spec)
        self._rollout = Rollout(config.episode_len, context.environments, spec, self._inputs.dtype, self._policy)
        self._engine: Engine | None = None
        if not context.exploit:
            self._engine = make_engine(spec, self._inputs.dtype, self._rollout.batch_shape)
        self._actor: Actor = self._engine or make_actor(spec, self._inputs.dtype)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._exchange = Exchange(config, context)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        sentence = discrete_refusal(action_space)
        if sentence:
            return f"da3c cannot handle the action space {action_space}; {sentence}"
        return actor_critic_refusal("da3c", config, observation_space, DiscreteActions(action_space).policy)

    def reset(self, observations: Leaves) -> Leaves:
        self._rollout.clear()
        self._exchange.env_steps = 0
        self._inputs.reset(observations)
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        if self.context.exploit:
            self._use(self._exchange.pull_if_old())
        else:
            self.learn()  # has no effect if the caller has already called it
            rewards = self._inputs.clipped_rewards(step)
            final = self._inputs.truncated_inputs(step)
            values = None if final is None else self._values(self._inputs.normalized(final), self._inputs.state_after)
            self._rollout.outcome(step, rewards, self.config.rewards_gamma, values)
            self._exchange.env_steps += step.env_steps
        self._inputs.next(step)
        if not self.config.overlap and self._rollout.full:
            # Algorithm S3 from the line "R = ..." to its end.
            self._update(
                self._rollout.batch(self._values(self._inputs.newest, self._inputs.state), self.config.gae_lambda)
            )
        return self._act()

    def learn(self) -> None:
        """Update from a full rollout, with `overlap`. Its last row, T, becomes the first row of the next rollout."""
        rollout = self._rollout
        if self.context.exploit or not rollout.full:
            return
        old = self._policy.log_probability(self._outputs, self._actions)
        self._update(rollout.batch(None, self.config.gae_lambda))
        outputs, self._inputs.state_after = self._actor.act(rollout.newest(), self._inputs.state, rollout.row)
        new = self._policy.log_probability(outputs, self._actions)
        with np.errstate(all="ignore"):  # the parameter server rejects gradients that are not finite
            weights = np.exp(np.minimum(new - old, 0.0)).astype(np.float32)
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
        """Push the gradient of the loss over a rollout, and use the parameters of the reply."""
        if not batch.mask.any():  # all transitions are void
            self._use(self._exchange.push(None))
            return
        assert self._engine is not None, "a da3c agent in exploit mode does not learn"
        loss = ActorCriticLoss(self.config, self._policy, batch)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(batch.inputs, batch.state, batch.restart, loss, memory)
        scalars = loss.means
        whole = scalars.pop("loss")
        self._use(self._exchange.push(gradient, whole, scalars))

    def _use(self, pulled: Pulled | None) -> None:
        """Use new parameters, if there are any."""
        if pulled is not None:
            self._actor.set_parameters(pulled.parameters)
            self._inputs.set_statistics(pulled)
