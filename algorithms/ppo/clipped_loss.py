"""The clipped loss of PPO, and its derivative with respect to the network's outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.rollout import Batch
from relaax.nn.distributions import Distribution

from ..da3c.loss import ActorCriticLoss
from .config import Config

Array = npt.NDArray[np.float32]


class ClippedLoss(ActorCriticLoss):
    """The loss over a minibatch (Schulman et al. 2017, equations 7 and 9), a mean over the unmasked steps:

        -min(r_t A_t, clip(r_t, 1 - epsilon, 1 + epsilon) A_t)  +  c * (R_t - V(s_t))^2  -  beta * H(pi(. | s_t))

    r_t is pi(a_t | s_t) divided by the likelihood with which the agent chose a_t. A_t and R_t are constants. With
    `normalize_advantages`, the advantages of the minibatch have mean 0 and standard deviation 1. With `value_clipping`,
    the squared error is the larger one of V(s_t) and of V(s_t) clipped to the value at acting plus and minus that
    bound (Engstrom et al. 2020, equation 2). c is `value_loss_weight`, beta `entropy_beta`, epsilon `clip`.
    """

    def __init__(self, config: Config, policy: Distribution, batch: Batch) -> None:
        super().__init__(config, policy, batch)
        assert batch.log_probability is not None, "the rollout must store log-probabilities"
        mask = batch.mask.reshape(-1)
        self._weigh(mask / np.float32(max(mask.sum(), 1)))
        self._old_log_probability = batch.log_probability.reshape(-1)
        self._old_values = self._targets - self._advantages
        self._clip, self._value_clip = np.float32(config.clip), config.value_clipping
        if config.normalize_advantages and np.count_nonzero(self._own) > 1:
            shares = self._own / self._own.sum()
            centred = self._advantages - np.dot(shares, self._advantages)
            deviation = np.sqrt(np.dot(shares, centred * centred))
            self._advantages = centred / (deviation + np.float32(1e-8))
        self._kl = self._clipped = 0.0

    def __call__(self, outputs: Mapping[str, Array], part: slice) -> dict[str, Array]:
        weights, own, actions = self._weights[part], self._own[part], self._actions[part]
        masked = self._policy.masked(outputs, None if self._valid is None else self._valid[part])
        change = (self._policy.log_probability(masked, actions) - self._old_log_probability[part]).astype(np.float32)
        change = np.where(own > 0, change, np.float32(0))  # the likelihood of others is arbitrary
        ratio, weighted = np.exp(change), own * self._advantages[part]
        bounded = np.clip(ratio, 1 - self._clip, 1 + self._clip)
        surrogate = np.minimum(ratio * weighted, bounded * weighted)
        # The derivative of r A by log pi is r A. Where the clipped term is smaller, it is 0.
        by_log_probability = np.where(ratio * weighted > surrogate, np.float32(0), -surrogate)
        by_log_probability -= self._cloned(masked, actions, part)
        by_outputs, _, entropy = self._policy.gradient(masked, actions, by_log_probability, -self._beta * own)
        errors = self._errors(outputs["value"][:, 0], part)
        by_outputs["value"] = (-2 * self._c * weights * errors[0])[:, None]
        terms = -surrogate.sum(), np.dot(weights, errors[1]), np.dot(own, entropy)
        self._sums = [whole + float(term) for whole, term in zip(self._sums, terms, strict=True)]
        self._kl += float(np.dot(own, ratio - 1 - change))
        self._clipped += float(np.dot(own, bounded != ratio))
        return by_outputs

    @property
    def means(self) -> dict[str, float]:
        """Terms and loss as those of da3c, the approximate KL divergence (Schulman 2020), and the share clipped."""
        return super().means | {"policy/kl": self._kl, "policy/clipped": self._clipped}

    def _errors(self, values: Array, part: slice) -> tuple[Array, Array]:
        """Return R - V, or 0 where a clipped value gives the larger error, and the squared errors, float32 [B] each."""
        errors: Array = self._targets[part] - values
        squares = errors * errors
        if self._value_clip is None:
            return errors, squares
        old = self._old_values[part]
        clipped = self._targets[part] - np.clip(values, old - self._value_clip, old + self._value_clip)
        return np.where(clipped * clipped > squares, np.float32(0), errors), np.maximum(squares, clipped * clipped)
