"""The loss of an actor-critic, and its derivative with respect to the network's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.network import ActorCriticConfig
from relaax.algorithm_base.rollout import Batch
from relaax.nn.distributions import LEAST_VALID, Distribution

Array = npt.NDArray[np.float32]


class ActorCriticLoss:
    """The loss over a batch (Mnih et al. 2016, Algorithm S3), summed over steps and averaged over environments:

        -log pi(a_t | s_t) * A_t  +  c * (R_t - V(s_t))^2  -  beta * H(pi(. | s_t))

    A_t and R_t are constants. Masked steps have weight 0. pi is the policy over the valid actions. c is
    `value_loss_weight`, beta `entropy_beta`, divided by the entropy's maximum with `relative_entropy`.

    Where the client chose the action, the first and the last term are replaced by -w log pi(a_t | s_t), where w is
    `cloning_weight`. This term is 0 for an action that was not valid.

    An engine calls it with the outputs of some examples (head -> float32 [B, width]). It returns the derivative of the
    loss with respect to these outputs, in the same form. To change the loss, change this class.
    """

    def __init__(self, config: ActorCriticConfig, policy: Distribution, batch: Batch) -> None:
        self._policy = policy
        self._c, self._beta = config.value_loss_weight, config.entropy_beta
        if config.relative_entropy:
            self._beta /= policy.max_entropy or 1.0  # a choice of one has no entropy
        self._actions = batch.actions.reshape(-1, *policy.action_shape)
        self._valid = None if batch.valid is None else batch.valid.reshape(-1, batch.valid.shape[-1])
        self._advantages, self._targets = batch.advantages.reshape(-1), batch.targets.reshape(-1)
        self._chosen = None if batch.chosen is None else batch.chosen.reshape(-1)
        self._cloning_weight, self._cloning = np.float32(config.cloning_weight), 0.0
        self._weigh(batch.mask.reshape(-1) / np.float32(batch.mask.shape[1]))  # 0 or 1 / environments
        self._sums = [0.0, 0.0, 0.0]

    def _weigh(self, weights: Array) -> None:
        """Set the weights of the steps: of all, and of those with the agent's own actions."""
        self._weights = weights
        own: Array = weights if self._chosen is None else np.where(self._chosen, np.float32(0), weights)
        self._own = own

    def __call__(self, outputs: Mapping[str, Array], part: slice) -> dict[str, Array]:
        weights, own, actions = self._weights[part], self._own[part], self._actions[part]
        masked = self._policy.masked(outputs, None if self._valid is None else self._valid[part])
        advantages, errors = own * self._advantages[part], self._targets[part] - outputs["value"][:, 0]
        by_outputs, log_probability, entropy = self._policy.gradient(
            masked,
            actions,
            by_log_probability=-advantages - self._cloned(masked, actions, part),
            by_entropy=-self._beta * own,
        )
        weighted: Any = weights * errors
        by_outputs["value"] = (-2 * self._c * weighted)[:, None]
        terms = -np.dot(log_probability, advantages), np.dot(weighted, errors), np.dot(own, entropy)
        self._sums = [whole + float(term) for whole, term in zip(self._sums, terms, strict=True)]
        return by_outputs

    def _cloned(self, masked: Mapping[str, Array], actions: npt.NDArray[Any], part: slice) -> Array | np.float32:
        """Return the weights of the cloning term, float32 [B], and add up the term."""
        if self._chosen is None or not self._cloning_weight:
            return np.float32(0)
        log_probability = self._policy.log_probability(masked, actions)
        valid = self._chosen[part] & (log_probability > LEAST_VALID)
        weights: Array = np.where(valid, self._cloning_weight * self._weights[part], np.float32(0))
        self._cloning -= float(np.dot(weights, np.where(valid, log_probability, 0.0)))
        return weights

    @property
    def means(self) -> dict[str, float]:
        """Each term and the whole loss: means over the unmasked steps of the examples so far."""
        count = max(float(self._weights.sum()), 1e-9)
        policy, value, entropy = (whole / count for whole in self._sums)
        means = {"loss/policy": policy, "loss/value": value, "loss/entropy": entropy}
        if self._chosen is not None:
            means["loss/cloning"] = self._cloning / count
        return means | {"loss": policy + self._c * value - self._beta * entropy + self._cloning / count}
