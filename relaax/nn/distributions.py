"""Distributions over actions that a network's heads describe: in TensorFlow for a tape, in numpy for the host."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.losses import categorical_entropy
from relaax.nn.tensorflow_loading import tf

Tensor = Any
Array = npt.NDArray[np.float32]

SMALLEST_VARIANCE = 1e-6
"""Keeps the likelihood of a Gaussian finite where the network wants no variance at all."""


class Policy(ABC):
    """What the outputs of a network mean.

    heads: names and widths of the network's heads that describe the distribution.
    action_shape, action_dtype: of one action as it is sampled and stored.
    """

    heads: Mapping[str, int]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    @abstractmethod
    def log_probability(self, outputs: Mapping[str, Tensor], a_t: Tensor) -> Tensor:
        """The log pi(a_t), float32 [B]. `outputs`: head -> float32 [B, width]; `a_t`: [B, *action_shape]."""

    @abstractmethod
    def log_probability_numpy(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The log pi(a_t), float64 [N]. `outputs`: head -> float32 [N, width]; `a_t`: [N, *action_shape]."""

    @abstractmethod
    def entropy(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """In nats, float32 [B]. `outputs`: head -> float32 [B, width]."""

    @abstractmethod
    def loss_gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], advantage_t: Array, entropy_weight_t: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        """What a tape finds of sum(-log pi(a_t) * advantage_t - entropy_weight_t * entropy), in numpy and much faster.

        `outputs`: head -> float32 [B, width]; `a_t`: [B, *action_shape]; the others float32 [B]. Gives the gradient by
        the outputs, head -> float32 [B, width]; the log pi(a_t) and the entropy, float32 [B].
        """

    @abstractmethod
    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""

    @abstractmethod
    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        """The most probable actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""


class Categorical(Policy):
    """One of `choices` actions, int64 from 0. The head `policy` gives unnormalised log-probabilities."""

    def __init__(self, choices: int) -> None:
        self.heads = {"policy": choices}
        self.action_shape = ()
        self.action_dtype = np.dtype(np.int64)

    def log_probability(self, outputs: Mapping[str, Tensor], a_t: Tensor) -> Tensor:
        outputs["policy"].shape.assert_has_rank(2)
        a_t.shape.assert_has_rank(1)
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=a_t, logits=outputs["policy"])

    def log_probability_numpy(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = _host_losses().softmax_log_probability(outputs["policy"], a_t)
        return found

    def entropy(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return categorical_entropy(outputs["policy"])

    def loss_gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], advantage_t: Array, entropy_weight_t: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        by_logits, log_probability, entropy = _host_losses().softmax_gradient(
            outputs["policy"], a_t, advantage_t, entropy_weight_t
        )
        return {"policy": by_logits}, log_probability, entropy

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        # The largest of logits + Gumbel noise is a sample of the softmax.
        logits = outputs["policy"]
        actions: npt.NDArray[Any] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        return actions

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        actions: npt.NDArray[Any] = outputs["policy"].argmax(axis=1)
        return actions


class Gaussian(Policy):
    """`size` real numbers, float32, each normally distributed and independent of the others.

    The head `mean` is linear; the variance is the softplus of the head `variance` (Mnih et al. 2016, section 9), one
    for each number or, `spherical` as in the paper, one for all. The entropy is the differential one: it may be
    negative.
    """

    def __init__(self, size: int, spherical: bool = False) -> None:
        self.heads = {"mean": size, "variance": 1 if spherical else size}
        self.action_shape = (size,)
        self.action_dtype = np.dtype(np.float32)

    def log_probability(self, outputs: Mapping[str, Tensor], a_t: Tensor) -> Tensor:
        a_t.shape.assert_is_compatible_with([None, *self.action_shape])
        mean, variance = outputs["mean"], self._variance(outputs)
        # A spherical variance is stretched over the numbers of an action by the division and the sum.
        terms = tf.square(a_t - mean) / variance + tf.math.log(2 * math.pi * variance)
        return -0.5 * tf.reduce_sum(terms, axis=1)

    def log_probability_numpy(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        mean = outputs["mean"].astype(np.float64)
        variance = self._variance_numpy(outputs)
        terms = np.square(a_t - mean) / variance + np.log(2 * math.pi * variance)
        summed: npt.NDArray[np.float64] = -0.5 * terms.sum(axis=1)
        return summed

    def entropy(self, outputs: Mapping[str, Tensor]) -> Tensor:
        terms = tf.math.log(2 * math.pi * math.e * self._variance(outputs))
        return 0.5 * self.heads["mean"] / self.heads["variance"] * tf.reduce_sum(terms, axis=1)

    def loss_gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], advantage_t: Array, entropy_weight_t: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        numbers, variances = self.heads["mean"], self.heads["variance"]
        variance = self._variance_numpy(outputs)
        error = a_t - outputs["mean"]
        by_mean = -error / variance
        squares = by_mean * by_mean  # (error / variance)^2
        if variances == numbers:
            by_variance = 1 / variance - squares
        else:
            by_variance = numbers / variance - squares.sum(axis=1, keepdims=True)
        log_determinant = numbers / variances * np.log(variance).sum(axis=1)
        log_2pi = math.log(2 * math.pi)
        log_probability: Array = 0.5 * ((by_mean * error).sum(axis=1) - log_determinant - numbers * log_2pi)
        entropy: Array = 0.5 * (log_determinant + numbers * (log_2pi + 1))
        by_mean *= advantage_t[:, None]
        by_variance *= 0.5 * advantage_t[:, None]
        by_variance -= (0.5 * numbers / variances) * entropy_weight_t[:, None] / variance
        by_variance *= np.exp(-np.logaddexp(0, -outputs["variance"]))  # the slope of softplus, which overflows nowhere
        return {"mean": by_mean, "variance": by_variance}, log_probability, entropy

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        mean = outputs["mean"]
        noise = rng.standard_normal(mean.shape)
        return (mean + np.sqrt(self._variance_numpy(outputs)) * noise).astype(self.action_dtype)

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return outputs["mean"].astype(self.action_dtype)

    @staticmethod
    def _variance_numpy(outputs: Mapping[str, Array]) -> Array:
        # log(exp(0) + exp(x)) is a softplus that overflows nowhere.
        variance: Array = np.logaddexp(0, outputs["variance"]) + np.float32(SMALLEST_VARIANCE)
        return variance

    def _variance(self, outputs: Mapping[str, Tensor]) -> Tensor:
        for head, width in self.heads.items():
            outputs[head].shape.assert_is_compatible_with([None, width])
        return tf.nn.softplus(outputs["variance"]) + SMALLEST_VARIANCE


@cache
def _host_losses() -> Any:
    from relaax.nn.host import losses  # numba with it: only where something is learned

    return losses


def inverse_softplus(variance: float) -> float:
    """The bias of the head `variance` that makes the first variance of a `Gaussian` this.

    Raises ValueError where the variance is not above the smallest one, 1e-6.
    """
    wanted = variance - SMALLEST_VARIANCE
    if not 0 < wanted < math.inf:
        raise ValueError(f"a variance is greater than {SMALLEST_VARIANCE}, not {variance}; give one like 1.0")
    return wanted + math.log(-math.expm1(-wanted))  # log(exp(v) - 1), which overflows nowhere
