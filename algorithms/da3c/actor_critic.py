"""What da3c and da3c_cont have in common: an agent that acts, gathers experience and pushes gradients."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Leaves, StepResult
from relaax.algorithm_base.network_agent import NetworkAgent
from relaax.algorithm_base.policy_graph import GreedyAction
from relaax.algorithm_base.rollout import Batch, Experience, Rollout
from relaax.nn.distributions import Distribution

from .config import Config
from .loss import ActorCriticLoss
from .network import actor_critic

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]


class ActorCritic(NetworkAgent):
    """One actor-learner of Mnih et al. 2016, Algorithm S3, over N environments at once.

    With `overlap` it acts once more before an update, and updates while the environments step. So the first action of a
    rollout is that of a policy one update older. All else of that step is of the newest parameters, and its advantage
    counts as much less as the newest policy is less likely to act so: the importance weight of Espeholt et al. 2018,
    truncated at 1. Without that weight, da3c_cont with an LSTM does not learn where learning is fast.

    A `Distribution` reads the network's outputs. An algorithm says what its actions are (`_leaves`), and may say which
    experience makes a batch (`_experience_of`).
    """

    def __init__(self, config: Config, context: AgentContext, policy: Distribution) -> None:
        super().__init__(config, context, actor_critic(config, context.observation_space, policy))
        self._policy = policy
        self._experience = self._experience_of()
        self._begin(self._experience)

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

    @abstractmethod
    def _greedy(self) -> GreedyAction:
        """Return how the most probable action follows from the outputs."""

    @abstractmethod
    def _leaves(self, actions: npt.NDArray[Any]) -> Leaves:
        """Return the policy's actions as leaves of the action space."""

    def _experience_of(self) -> Experience:
        """Return the store of experience until it is learned from."""
        n = self.context.environments
        return Rollout(self.config.episode_len, n, self._spec, self._input_dtype, self._policy)

    def _policy_outputs(self) -> tuple[tuple[str, ...], GreedyAction]:
        return tuple(self._policy.heads), self._greedy()

    def _act(self) -> Leaves:
        exploit = self.context.exploit
        if not exploit and not self.config.overlap and self._experience.full:
            self._update(functools.partial(self._values, self._inputs, self._state))
        keep = None if exploit else self._experience.row
        self._outputs, self._state_after = outputs, _ = self._actor.act(self._inputs, self._state, keep)
        if exploit and self.config.greedy_exploit:
            actions = self._policy.mode(outputs)
        else:
            actions = self._policy.sample(outputs, self._rng)
        self._actions = actions
        if not exploit:
            self._experience.act(self._inputs, actions, outputs["value"][:, 0], self._state, self._restart)
        return self._leaves(actions)

    def _outcome(self, step: StepResult, rewards: npt.NDArray[Any]) -> None:
        cut_off = self._cut_off_inputs(step)
        final_values = None if cut_off is None else self._values(cut_off, self._state_after)
        self._experience.outcome(step, rewards, self.config.rewards_gamma, final_values)

    def _values(self, inputs: Inputs, state: Array) -> Array:
        return self._actor.act(inputs, state)[0]["value"][:, 0]

    def _update(self, expected: Callable[[], Array] | None) -> None:
        """`expected`: as for `Experience.batch`."""
        self._push(*self._gradient(self._experience.batch(expected, self.config.gae_lambda)))

    def _gradient(self, batch: Batch) -> tuple[Array, float] | tuple[None, None]:
        """Return the gradient, and the loss that it is of, as a mean over the steps that count."""
        if not batch.mask.any():
            return None, None  # nothing but void transitions
        assert self._engine is not None, "an agent in exploit mode does not learn"
        loss = ActorCriticLoss(self.config, self._policy, batch)
        memory = self.context.parameters.gradient_memory()
        gradient = self._engine.gradient(batch.inputs, batch.state, batch.restart, loss, memory)
        *terms, whole = loss.means.items()
        return self._clipped(gradient, dict(terms)), whole[1]
