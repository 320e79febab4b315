"""Distributions over actions that a network's heads describe, and their derivatives by the heads' outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

SMALLEST_VARIANCE = 1e-6
"""Keeps the likelihood of a Gaussian finite if the network wants no variance at all."""


class Distribution(ABC):
    """What the outputs of a network mean as a policy.

    heads: names and widths of the network's heads that describe the distribution.
    action_shape, action_dtype: of one action as it is sampled and stored.
    """

    heads: Mapping[str, int]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    @abstractmethod
    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Draw actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""

    @abstractmethod
    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        """Take the most probable actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""

    @abstractmethod
    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Compute log pi(a_t), float64 [N]. `outputs`: head -> float32 [N, width]; `a_t`: [N, *action_shape]."""

    @abstractmethod
    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        """Compute the derivative by the outputs of a loss that is a function of log pi(a_t) and of the entropy.

        Args:
          outputs: head -> float32 [B, width].
          a_t: [B, *action_shape].
          by_log_probability: float32 [B], the derivative of the loss by log pi(a_t).
          by_entropy: float32 [B], the derivative of the loss by the entropy in nats.

        Returns:
          The derivative by the outputs, head -> float32 [B, width]; log pi(a_t) and the entropy, float32 [B] each.
        """


class Categorical(Distribution):
    """One of `choices` actions, int64 from 0. The head `policy` gives unnormalised log-probabilities."""

    def __init__(self, choices: int) -> None:
        self.heads = {"policy": choices}
        self.action_shape = ()
        self.action_dtype = np.dtype(np.int64)

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        # The largest of logits + Gumbel noise is a sample of the softmax.
        logits = outputs["policy"]
        actions: npt.NDArray[Any] = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        return actions

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        actions: npt.NDArray[Any] = outputs["policy"].argmax(axis=1)
        return actions

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = _kernels().softmax_log_probability(outputs["policy"], a_t)
        return found

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        by_logits, log_probability, entropy = _kernels().softmax_gradient(
            outputs["policy"], a_t, by_log_probability, by_entropy
        )
        return {"policy": by_logits}, log_probability, entropy


class MultiCategorical(Distribution):
    """Several choices, independent of each other: one of `choices[k]` actions for each k, int64 [K] from 0.

    The head `policy` gives their unnormalised log-probabilities side by side. log pi and the entropy are the sums of
    those of the choices.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = tuple(choices)
        self.heads = {"policy": sum(choices)}
        self.action_shape = (len(self.choices),)
        self.action_dtype = np.dtype(np.int64)

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        logits = outputs["policy"]
        return self._largest(logits + rng.gumbel(size=logits.shape))

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return self._largest(outputs["policy"])

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.zeros(len(a_t))
        for k, columns in enumerate(self._columns()):
            found += _kernels().softmax_log_probability(outputs["policy"][:, columns], a_t[:, k])
        return found

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        logits = outputs["policy"]
        by_logits = np.empty(logits.shape, np.float32)
        log_probability, entropy = np.zeros((2, len(a_t)), np.float32)
        for k, columns in enumerate(self._columns()):
            by_logits[:, columns], log_probability_k, entropy_k = _kernels().softmax_gradient(
                logits[:, columns], a_t[:, k], by_log_probability, by_entropy
            )
            log_probability += log_probability_k
            entropy += entropy_k
        return {"policy": by_logits}, log_probability, entropy

    def _largest(self, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.stack([scores[:, columns].argmax(axis=1) for columns in self._columns()], axis=1)

    def _columns(self) -> Iterator[slice]:
        """Where the outputs of each choice stand."""
        start = 0
        for count in self.choices:
            yield slice(start, start + count)
            start += count


class Bernoulli(Distribution):
    """`size` bits, int8 0 or 1, independent of each other. The head `policy` gives log(p(1) / p(0)) of each.

    log pi and the entropy are the sums of those of the bits.
    """

    def __init__(self, size: int) -> None:
        self.heads = {"policy": size}
        self.action_shape = (size,)
        self.action_dtype = np.dtype(np.int8)

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        logits = outputs["policy"]
        return (rng.random(logits.shape) < _sigmoid(logits)).astype(self.action_dtype)

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return (outputs["policy"] > 0).astype(self.action_dtype)

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        logits = outputs["policy"].astype(np.float64)
        found: npt.NDArray[np.float64] = -np.logaddexp(0, np.where(a_t, -logits, logits)).sum(axis=1)
        return found

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        logits = outputs["policy"]
        one, zero = _sigmoid(logits), _sigmoid(-logits)
        log_probability: Array = -np.logaddexp(0, np.where(a_t, -logits, logits)).sum(axis=1)
        entropy: Array = (one * np.logaddexp(0, -logits) + zero * np.logaddexp(0, logits)).sum(axis=1)
        # By a logit z: of log pi(a) it is a - p(1), of the entropy -z p(1) p(0).
        by_logits: Array = np.where(a_t, zero, -one) * by_log_probability[:, None]
        by_logits -= logits * one * zero * by_entropy[:, None]
        return {"policy": by_logits}, log_probability, entropy


class Gaussian(Distribution):
    """`size` real numbers, float32, each normally distributed and independent of the others.

    The head `mean` is linear; the variance is the softplus of the head `variance` (Mnih et al. 2016, section 9), one
    for each number or, `spherical` as in the paper, one for all. The entropy is the differential one: it may be
    negative.
    """

    def __init__(self, size: int, spherical: bool = False) -> None:
        self.heads = {"mean": size, "variance": 1 if spherical else size}
        self.action_shape = (size,)
        self.action_dtype = np.dtype(np.float32)

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        mean = outputs["mean"]
        noise = rng.standard_normal(mean.shape)
        return (mean + np.sqrt(self._variance(outputs)) * noise).astype(self.action_dtype)

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return outputs["mean"].astype(self.action_dtype)

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        mean = outputs["mean"].astype(np.float64)
        variance = self._variance(outputs)
        terms = np.square(a_t - mean) / variance + np.log(2 * math.pi * variance)
        summed: npt.NDArray[np.float64] = -0.5 * terms.sum(axis=1)
        return summed

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        numbers, variances = self.heads["mean"], self.heads["variance"]
        variance = self._variance(outputs)
        error = a_t - outputs["mean"]
        by_mean = error / variance
        squares = by_mean * by_mean  # (error / variance)^2
        if variances == numbers:
            by_variance = squares - 1 / variance
        else:
            by_variance = squares.sum(axis=1, keepdims=True) - numbers / variance
        log_determinant = numbers / variances * np.log(variance).sum(axis=1)
        log_2pi = math.log(2 * math.pi)
        log_probability: Array = -0.5 * ((by_mean * error).sum(axis=1) + log_determinant + numbers * log_2pi)
        entropy: Array = 0.5 * (log_determinant + numbers * (log_2pi + 1))
        by_mean *= by_log_probability[:, None]
        by_variance *= 0.5 * by_log_probability[:, None]
        by_variance += (0.5 * numbers / variances) * by_entropy[:, None] / variance
        by_variance *= _sigmoid(outputs["variance"])  # the slope of softplus
        return {"mean": by_mean, "variance": by_variance}, log_probability, entropy

    @staticmethod
    def _variance(outputs: Mapping[str, Array]) -> Array:
        # log(exp(0) + exp(x)) is a softplus that overflows nowhere.
        variance: Array = np.logaddexp(0, outputs["variance"]) + np.float32(SMALLEST_VARIANCE)
        return variance


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), which overflows nowhere."""
    sigmoid: Array = np.exp(-np.logaddexp(0, -x))
    return sigmoid


@cache
def _kernels() -> Any:
    from relaax.nn.host import kernels  # numba with it: only in a process that learns

    return kernels


def inverse_softplus(variance: float) -> float:
    """Find the bias of the head `variance` that makes the first variance of a `Gaussian` this.

    Raises ValueError if the variance is not above the smallest one, 1e-6.
    """
    wanted = variance - SMALLEST_VARIANCE
    if not 0 < wanted < math.inf:
        raise ValueError(f"a variance is greater than {SMALLEST_VARIANCE}, not {variance}; give one like 1.0")
    return wanted + math.log(-math.expm1(-wanted))  # log(exp(v) - 1), which overflows nowhere
