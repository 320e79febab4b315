"""The agent of ppo: Algorithm 1 of Schulman et al. 2017, for any actions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Pulled
from relaax.algorithm_base.ragged import RaggedRollout
from relaax.algorithm_base.rollout import Batch, Rollout
from relaax.nn.specification import NetworkSpec

from ..da3c.agent import Agent as ActorCritic
from .clipped_loss import ClippedLoss
from .config import Config
from .minibatches import minibatches

Array = npt.NDArray[np.float32]


class Agent(ActorCritic):
    """One worker over N environments: K epochs of minibatches for each rollout, and a push for each minibatch.

    The reply to a push has the parameters for the next minibatch. They contain the updates of other workers, too. The
    ratio is to the likelihood with which this agent acted, so the clipped objective bounds how far all of these updates
    move the policy. An action in progress at an update keeps its likelihood.

    With synchronous updates, the agents end their epochs at the same version of the parameters, so that all gather
    rollouts at the same time.
    """

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        self._order = self._rng.spawn(1)[0]  # actions do not depend on the number of minibatches

    def _new_rollout(self, spec: NetworkSpec) -> Rollout | RaggedRollout:
        config, context, inputs = self.config, self.context, self._inputs
        buffer: type[Rollout | RaggedRollout] = RaggedRollout if context.out_of_step else Rollout
        return buffer(
            *(config.episode_len, context.environments, spec, inputs.dtype, self._policy),
            mask_size=inputs.mask_size,
            log_probabilities=True,
        )

    @property
    def _row(self) -> None:
        """None: minibatches have their own rows, and parameters that are newer than those at acting."""
        return

    def _store(self, values: Array) -> None:
        inputs, actions = self._inputs, self._actions
        likelihood = self._policy.log_probability(self._outputs, actions)
        self._rollout.act(inputs.newest, actions, values, inputs.state, inputs.restart, inputs.valid, likelihood)

    def _open_weights(self, outputs: Mapping[str, Array]) -> None:
        """Return None: the ratio of the loss weighs these actions."""

    def _use(self, pulled: Pulled | None) -> None:
        super()._use(pulled)
        if pulled is not None:
            self._version = pulled.version

    def _update(self, batch: Batch) -> None:
        config, has_steps = self.config, bool(batch.mask.any())
        if has_steps:
            self._use(self._exchange.pull())  # other workers have pushed since the rollout began
            self._record(batch)
            self._push_epochs(batch)
        if self._exchange.env_steps or not has_steps:
            self._use(self._exchange.push(None))
        if config.update_patience is not None:
            while self._version % (config.epochs * config.minibatches):  # others have minibatches left
                self._use(self._exchange.push(None))

    def _push_epochs(self, batch: Batch) -> None:
        """Push a gradient for each minibatch of each epoch, until `target_kl` ends the epochs."""
        assert self._engine is not None, "an actor-critic agent in exploit mode does not learn"
        config, metrics, first = self.config, self.context.metrics, True
        for _ in range(config.epochs):
            for minibatch in minibatches(batch, config.minibatches, self._order, recurrent=config.lstm):
                loss = ClippedLoss(config, self._policy, minibatch)
                memory = self.context.parameters.gradient_memory()
                gradient = self._engine.gradient(minibatch.inputs, minibatch.state, minibatch.restart, loss, memory)
                scalars = loss.means
                if first:
                    metrics.scalar("policy/kl_first", scalars["policy/kl"])
                if config.target_kl is not None and not scalars["policy/kl"] <= config.target_kl:
                    metrics.scalar("policy/kl_at_end", scalars["policy/kl"])
                    return
                self._use(self._exchange.push(gradient, scalars.pop("loss"), scalars))
                first = False

    def _record(self, batch: Batch) -> None:
        """Record the metrics of a rollout: the explained variance of the returns, and clipped actions."""
        steps = batch.mask > 0
        targets, advantages = batch.targets[steps], batch.advantages[steps]
        if variance := float(targets.var()):
            self.context.metrics.scalar("value/explained_variance", 1 - float(advantages.var()) / variance)
        clipped = self._actions_of.clipped_share()
        if clipped is not None:
            self.context.metrics.scalar("actions/clipped", clipped)
