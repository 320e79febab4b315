"""The agent of da3c and da3c_cont: Algorithm S3 of Mnih et al. 2016, for any actions."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, Leaves, Pulled, Space, StepResult
from relaax.algorithm_base.acting.actions import actions_refusal
from relaax.algorithm_base.acting.exploration import PersistentNoise
from relaax.algorithm_base.acting.policy_graph import PolicyGraph
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.inputs import Inputs
from relaax.algorithm_base.network import actor_critic_network, actor_critic_refusal
from relaax.algorithm_base.ragged import RaggedRollout
from relaax.algorithm_base.rollout import Batch, Rollout
from relaax.nn.engine import Actor, Engine, make_actor, make_engine
from relaax.nn.specification import NetworkSpec

from .episodes import Episodes
from .loss import ActorCriticLoss
from .model import PolicyConfig

_log = logging.getLogger(__name__)
Array = npt.NDArray[np.float32]


class Agent(AgentBase):
    """One actor-learner over N environments at once. It updates from rollouts, or with `whole_episodes` from episodes.

    With `overlap` the agent acts once more before an update, and updates while the environments step. So the first
    action of a rollout is chosen by a policy that is one update older. The likelihood of this action, the value and the
    LSTM's next state are computed again with the newest parameters. The advantage of this step is multiplied by the
    newest likelihood divided by the older one: the importance weight of Espeholt et al. 2018, truncated at 1.
    Without this weight, an LSTM does not learn if the parameters change fast. An action that is still in progress at an
    update, in a held row, gets this weight too, also without `overlap`.
    """

    out_of_step = chosen_actions = True

    def __init__(self, config: PolicyConfig, context: AgentContext) -> None:
        super().__init__(config, context)
        self._actions_of = config.actions(context.action_space)
        if sentence := self._actions_of.unused_bounds():
            _log.warning("%s", sentence)
        self._policy = self._actions_of.policy
        spec = actor_critic_network(config, context.observation_space, self._policy)
        self._inputs = Inputs(config, context, spec)
        self._rollout = self._new_rollout(spec)
        self._engine: Engine | None = None
        if not context.exploit:
            self._engine = make_engine(spec, self._inputs.dtype, self._rollout.batch_shape)
        self._actor: Actor = self._engine or make_actor(spec, self._inputs.dtype)
        self._outputs: Mapping[str, Array] = {}  # with which the newest actions were chosen
        self._actions: npt.NDArray[Any] = np.zeros(0)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._noise = PersistentNoise(self._policy, 1.0 if context.exploit else config.persistence, self._rng)
        self._exchange = Exchange(config, context)
        self._use(self._exchange.pull())

    def _new_rollout(self, spec: NetworkSpec) -> Rollout | RaggedRollout:
        """Return an empty rollout. The actions and observations of `spec` are known."""
        config, context = self.config, self.context
        buffer: type[Rollout | RaggedRollout] = RaggedRollout if context.out_of_step else Rollout
        if config.whole_episodes:
            buffer = Episodes
        length = config.longest_episode if config.whole_episodes else config.episode_len
        return buffer(
            length, context.environments, spec, self._inputs.dtype, self._policy, mask_size=self._inputs.mask_size
        )

    @classmethod
    def refusal(cls, config: PolicyConfig, observation_space: Space, action_space: Space) -> str | None:
        sentence = actions_refusal(action_space, config.entropy_weights)
        if sentence:
            return f"{config.name} cannot handle the action space {action_space}: {sentence}"
        policy = config.actions(action_space).policy
        if config.relative_entropy and not math.isfinite(policy.max_entropy):
            return (
                f"{config.name} cannot handle the action space {action_space} with relative_entropy, because the "
                "entropy of real numbers has no maximum; set algorithm.relative_entropy to false"
            )
        return actor_critic_refusal(config.name, config, (observation_space, action_space), policy)

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
            if step.chosen is not None and step.actions is not None:
                self._rollout.replace_actions(step.chosen, self._actions_of.actions_of(step.actions))
            self._rollout.outcome(step, rewards, self.config.rewards_gamma, values)
            self._exchange.env_steps += step.env_steps
            if self._rollout.uneven and self._engine is not None:
                self._engine.forget()
        self._inputs.next(step)
        if not self.config.overlap and self._rollout.full:
            # Algorithm S3 from the line "R = ..." to its end.
            self._update(
                self._rollout.batch(self._values(self._inputs.newest, self._inputs.state), self.config.gae_lambda)
            )
            if step.held is not None:
                self._renew_open_actions()
        return self._act()

    def learn(self) -> None:
        """Update from a full rollout, with `overlap`. Its last row, T, becomes the first row of the next rollout."""
        rollout = self._rollout
        if self.context.exploit or not rollout.full:
            return
        self._update(rollout.batch(None, self.config.gae_lambda))
        self._renew_open_actions()

    def _renew_open_actions(self) -> None:
        """Start the next rollout with the actions in progress. Recompute their values, weights and LSTM states."""
        rollout = self._rollout
        renewed, self._inputs.state_after = self._actor.act(rollout.newest(), self._inputs.state, self._row)
        outputs = self._policy.masked(renewed, self._inputs.valid)
        rollout.begin_next(outputs["value"][:, 0], self._open_weights(outputs))

    def _open_weights(self, outputs: Mapping[str, Array]) -> Array | None:
        """Return the importance weights of the actions in progress, float32 [N]. `outputs`: by the newest parameters.

        None if the rollout stores the likelihoods of its actions, and the loss uses them.
        """
        old = self._policy.log_probability(self._outputs, self._actions)
        new = self._policy.log_probability(outputs, self._actions)
        with np.errstate(all="ignore"):  # the parameter server rejects gradients that are not finite
            weights: Array = np.exp(np.minimum(new - old, 0.0)).astype(np.float32)
        return weights

    @property
    def _row(self) -> int | None:
        """Row of the next gradient's batch that the next `act` fills; None if that batch has other rows."""
        return self._rollout.row

    def policy_graph(self) -> PolicyGraph:
        parameters = self.context.parameters.pull().parameters
        return self._inputs.policy_graph(parameters, tuple(self._policy.heads), self._actions_of.greedy())

    def _act(self) -> Leaves:
        """Perform a_t according to policy pi(a_t | s_t)."""
        inputs, exploit = self._inputs, self.context.exploit
        computed, state = self._actor.act(inputs.newest, inputs.state, None if exploit else self._row)
        outputs = self._policy.masked(computed, inputs.valid)
        if exploit and self.config.greedy_exploit:
            actions = self._policy.mode(outputs)
        else:
            actions = self._noise.sample(outputs)
        if inputs.held is not None:  # the state of these rows is computed again, from the same inputs
            actions = inputs.keep_held(self._actions, actions)
            outputs = {head: inputs.keep_held(self._outputs[head], output) for head, output in outputs.items()}
        inputs.state_after, self._outputs, self._actions = state, outputs, actions
        if not exploit:
            self._store(outputs["value"][:, 0])
        return self._actions_of(actions, inputs.unwanted)

    def _store(self, values: Array) -> None:
        """Add the newest inputs, actions and their values, float32 [N], to the rollout."""
        inputs = self._inputs
        self._rollout.act(inputs.newest, self._actions, values, inputs.state, inputs.restart, inputs.valid)

    def _values(self, inputs: npt.NDArray[Any], state: Array) -> Array:
        return self._actor.act(inputs, state)[0]["value"][:, 0]

    def _update(self, batch: Batch) -> None:
        """Push the gradient of the loss over a rollout, and use the parameters of the reply."""
        if not batch.mask.any():  # all transitions are void
            self._use(self._exchange.push(None))
            return
        assert self._engine is not None, "an actor-critic agent in exploit mode does not learn"
        loss = ActorCriticLoss(self.config, self._policy, batch)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(batch.inputs, batch.state, batch.restart, loss, memory)
        scalars = loss.means
        whole = scalars.pop("loss")
        clipped = self._actions_of.clipped_share()
        if clipped is not None:
            scalars["actions/clipped"] = clipped
        self._use(self._exchange.push(gradient, whole, scalars))

    def _use(self, pulled: Pulled | None) -> None:
        """Use new parameters, if there are any."""
        if pulled is not None:
            self._inputs.set_statistics(pulled)
            self._actor.set_parameters(pulled.parameters, self._inputs.mean_image)
