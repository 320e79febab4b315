"""Distributions over actions that a network's heads describe: TensorFlow for the loss, numpy for acting."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from relaax.tf.losses import categorical_entropy

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
    def entropy(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """In nats, float32 [B]. `outputs`: head -> float32 [B, width]."""

    @abstractmethod
    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""

    @abstractmethod
    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        """The most probable actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""


class Categorical(Policy):
    """One of `choices` actions, int32 from 0. The head `policy` gives unnormalised log-probabilities."""

    def __init__(self, choices: int) -> None:
        self.heads = {"policy": choices}
        self.action_shape = ()
        self.action_dtype = np.dtype(np.int32)

    def log_probability(self, outputs: Mapping[str, Tensor], a_t: Tensor) -> Tensor:
        outputs["policy"].shape.assert_has_rank(2)
        a_t.shape.assert_has_rank(1)
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=a_t, logits=outputs["policy"])

    def entropy(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return categorical_entropy(outputs["policy"])

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        # The largest of logits + Gumbel noise is a sample of the softmax.
        logits = outputs["policy"]
        return self.mode({"policy": (logits + rng.gumbel(size=logits.shape)).astype(np.float32)})

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        actions: npt.NDArray[Any] = outputs["policy"].argmax(axis=1).astype(self.action_dtype)
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

    def entropy(self, outputs: Mapping[str, Tensor]) -> Tensor:
        terms = tf.math.log(2 * math.pi * math.e * self._variance(outputs))
        return 0.5 * self.heads["mean"] / self.heads["variance"] * tf.reduce_sum(terms, axis=1)

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        mean = outputs["mean"]
        # log(exp(0) + exp(x)) is a softplus that overflows nowhere.
        variance = np.logaddexp(0, outputs["variance"]) + SMALLEST_VARIANCE
        noise = rng.standard_normal(mean.shape)
        return (mean + np.sqrt(variance) * noise).astype(self.action_dtype)

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return outputs["mean"].astype(self.action_dtype)

    def _variance(self, outputs: Mapping[str, Tensor]) -> Tensor:
        for head, width in self.heads.items():
            outputs[head].shape.assert_is_compatible_with([None, width])
        return tf.nn.softplus(outputs["variance"]) + SMALLEST_VARIANCE


def inverse_softplus(variance: float) -> float:
    """The bias of the head `variance` that makes the first variance of a `Gaussian` this.

    Raises ValueError where the variance is not above the smallest one, 1e-6.
    """
    wanted = variance - SMALLEST_VARIANCE
    if not 0 < wanted < math.inf:
        raise ValueError(f"a variance is greater than {SMALLEST_VARIANCE}, not {variance}; give one like 1.0")
    return wanted + math.log(-math.expm1(-wanted))  # log(exp(v) - 1), which overflows nowhere
