"""The loss of an actor-critic, and its derivative with respect to the network's outputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.network import ActorCriticConfig
from relaax.algorithm_base.rollout import Batch
from relaax.nn.distributions import Distribution

Array = npt.NDArray[np.float32]


class ActorCriticLoss:
    """The loss over a batch (Mnih et al. 2016, Algorithm S3), summed over steps and averaged over environments:

        -log pi(a_t | s_t) * A_t  +  c * (R_t - V(s_t))^2  -  beta * H(pi(. | s_t))

    A_t and R_t are constants. Masked steps have weight 0. pi is the policy over the valid actions. c is
    `value_loss_weight`, beta `entropy_beta`.

    An engine calls it with the outputs of some examples (head -> float32 [B, width]). It returns the derivative of the
    loss with respect to these outputs, in the same form. To change the loss, change this class.
    """

    def __init__(self, config: ActorCriticConfig, policy: Distribution, batch: Batch) -> None:
        self._policy = policy
        self._c, self._beta = config.value_loss_weight, config.entropy_beta
        self._actions = batch.actions.reshape(-1, *policy.action_shape)
        self._valid = None if batch.valid is None else batch.valid.reshape(-1, batch.valid.shape[-1])
        self._advantages, self._targets = batch.advantages.reshape(-1), batch.targets.reshape(-1)
        self._weights = batch.mask.reshape(-1) / np.float32(batch.mask.shape[1])  # 0 or 1 / environments
        self._sums = [0.0, 0.0, 0.0]

    def __call__(self, outputs: Mapping[str, Array], part: slice) -> dict[str, Array]:
        weights = self._weights[part]
        advantages, errors = weights * self._advantages[part], self._targets[part] - outputs["value"][:, 0]
        by_outputs, log_probability, entropy = self._policy.gradient(
            self._policy.masked(outputs, None if self._valid is None else self._valid[part]),
            self._actions[part],
            by_log_probability=-advantages,
            by_entropy=-self._beta * weights,
        )
        weighted = weights * errors
        by_outputs["value"] = (-2 * self._c * weighted)[:, None]
        terms = -np.dot(log_probability, advantages), np.dot(weighted, errors), np.dot(weights, entropy)
        self._sums = [whole + float(term) for whole, term in zip(self._sums, terms, strict=True)]
        return by_outputs

    @property
    def means(self) -> dict[str, float]:
        """Each term and the whole loss: means over the unmasked steps of the examples so far."""
        count = max(float(self._weights.sum()), 1e-9)
        policy, value, entropy = (whole / count for whole in self._sums)
        whole = policy + self._c * value - self._beta * entropy
        return {"loss/policy": policy, "loss/value": value, "loss/entropy": entropy, "loss": whole}
