"""Distributions over actions from the outputs of a network's heads, and derivatives by these outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.host import kernels

Array = npt.NDArray[np.float32]

SMALLEST_VARIANCE = 1e-6
"""Lower bound of a Gaussian's variance. It keeps the likelihood finite."""
MASKED = np.float32(-1e30)
"""The log-probability, or the value, that replaces that of an action which a mask excludes. It is finite, so that the
entropy's product 0 x MASKED is 0, and so small that the action's probability is exactly 0.
"""
LEAST_VALID = np.float32(-1e29)
"""Lower bound of the log-probability, or of the value, of a valid action if others are masked."""


def masked(outputs: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None) -> npt.NDArray[Any]:
    """Return outputs [..., A] with `MASKED` where `valid`, bool [..., A], is false; unchanged if `valid` is None.

    Outputs of valid actions below `LEAST_VALID` are raised to it, so that they stay far above the others.
    """
    return outputs if valid is None else np.where(valid, np.maximum(outputs, LEAST_VALID), MASKED)


class Distribution(ABC):
    """A distribution over actions, with the outputs of a network as its parameters.

    heads: names and widths of the network's heads that describe the distribution.
    action_shape, action_dtype: of one action.
    choices: the number of actions of each choice that a mask can restrict, in order; empty without choices.
    max_entropy: in nats; infinite if there is no maximum.
    numbers: how many random numbers select an action.
    """

    heads: Mapping[str, int]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    numbers: int
    choices: tuple[int, ...] = ()
    max_entropy = math.inf

    def masked(self, outputs: Mapping[str, Array], valid: npt.NDArray[np.bool_] | None) -> Mapping[str, Array]:
        """Return the outputs of the distribution over the valid actions only. The others have probability 0.

        `outputs`: head -> float32 [B, width]. `valid`: bool [B, sum(choices)], with at least one true element for each
        choice; None if all actions are valid. Derivatives by the outputs of excluded actions are then 0 too.
        """
        return outputs if valid is None or not self.choices else {**outputs, "policy": masked(outputs["policy"], valid)}

    @abstractmethod
    def noise(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Draw the random numbers that select `count` actions, float64 [count, numbers]."""

    @abstractmethod
    def select(self, outputs: Mapping[str, Array], noise: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Return the actions [N, *action_shape] that random numbers select. They depend on nothing else.

        `outputs`: head -> float32 [N, width]. `noise`: float64 [N, numbers], each row drawn by `noise`.
        """

    def sample(self, outputs: Mapping[str, Array], rng: np.random.Generator) -> npt.NDArray[Any]:
        """Draw actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""
        count = len(next(iter(outputs.values())))
        return self.select(outputs, self.noise(count, rng))

    @abstractmethod
    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        """Return the most probable actions [N, *action_shape]. `outputs`: head -> float32 [N, width]."""

    @abstractmethod
    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Compute log pi(a_t), float64 [N]. `outputs`: head -> float32 [N, width]; `a_t`: [N, *action_shape]."""

    @abstractmethod
    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        """Compute the derivative by the outputs, for a loss that depends on log pi(a_t) and the entropy.

        `outputs`: head -> float32 [B, width]. `a_t`: [B, *action_shape]. `by_log_probability`, `by_entropy`: float32
        [B], the derivatives of the loss by log pi(a_t) and by the entropy in nats. Returns the derivative by the
        outputs, head -> float32 [B, width]; log pi(a_t), float32 [B]; and the entropy, float32 [B].
        """


class Categorical(Distribution):
    """One of `choices` actions, int64 from 0. The head `policy` gives unnormalised log-probabilities."""

    def __init__(self, choices: int) -> None:
        self.heads = {"policy": choices}
        self.numbers = choices
        self.choices = (choices,)
        self.max_entropy = math.log(choices)
        self.action_shape = ()
        self.action_dtype = np.dtype(np.int64)

    def noise(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.gumbel(size=(count, self.numbers))

    def select(self, outputs: Mapping[str, Array], noise: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        # argmax(logits + Gumbel noise) is a sample of the softmax.
        actions: npt.NDArray[Any] = (outputs["policy"] + noise).argmax(axis=1)
        return actions

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        actions: npt.NDArray[Any] = outputs["policy"].argmax(axis=1)
        return actions

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = kernels.softmax_log_probability(outputs["policy"], a_t)
        return found

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        by_logits, log_probability, entropy = kernels.softmax_gradient(
            outputs["policy"], a_t, by_log_probability, by_entropy
        )
        return {"policy": by_logits}, log_probability, entropy


class MultiCategorical(Distribution):
    """K independent choices: one of `choices[k]` actions for each k, int64 [K] from 0.

    The head `policy` gives the unnormalised log-probabilities of all choices, concatenated. log pi and the entropy are
    sums over the choices.
    """

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = tuple(choices)
        self.heads = {"policy": sum(choices)}
        self.numbers = sum(choices)
        self.max_entropy = sum(map(math.log, choices))
        self.action_shape = (len(self.choices),)
        self.action_dtype = np.dtype(np.int64)

    def noise(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.gumbel(size=(count, self.numbers))

    def select(self, outputs: Mapping[str, Array], noise: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        return self._largest(outputs["policy"] + noise)

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return self._largest(outputs["policy"])

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.zeros(len(a_t))
        for k, columns in enumerate(self._columns()):
            found += kernels.softmax_log_probability(outputs["policy"][:, columns], a_t[:, k])
        return found

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        logits = outputs["policy"]
        by_logits = np.empty(logits.shape, np.float32)
        log_probability, entropy = np.zeros((2, len(a_t)), np.float32)
        for k, columns in enumerate(self._columns()):
            by_logits[:, columns], log_probability_k, entropy_k = kernels.softmax_gradient(
                logits[:, columns], a_t[:, k], by_log_probability, by_entropy
            )
            log_probability += log_probability_k
            entropy += entropy_k
        return {"policy": by_logits}, log_probability, entropy

    def _largest(self, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.stack([scores[:, columns].argmax(axis=1) for columns in self._columns()], axis=1)

    def _columns(self) -> Iterator[slice]:
        return _consecutive(self.choices)


class Bernoulli(Distribution):
    """`size` independent bits, int8 0 or 1. The head `policy` gives log(p(1) / p(0)) of each.

    log pi and the entropy are sums over the bits.
    """

    def __init__(self, size: int) -> None:
        self.heads = {"policy": size}
        self.numbers = size
        self.max_entropy = size * math.log(2)
        self.action_shape = (size,)
        self.action_dtype = np.dtype(np.int8)

    def noise(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.random((count, self.numbers))

    def select(self, outputs: Mapping[str, Array], noise: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        return (noise < _sigmoid(outputs["policy"])).astype(self.action_dtype)

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
        # The derivative of log pi(a) by a logit z is a - p(1). That of the entropy is -z p(1) p(0).
        by_logits: Array = np.where(a_t, zero, -one) * by_log_probability[:, None]
        by_logits -= logits * one * zero * by_entropy[:, None]
        return {"policy": by_logits}, log_probability, entropy


class Gaussian(Distribution):
    """`size` real numbers, float32, each normally distributed and independent of the others.

    The head `mean` is linear. The variance is the softplus of the head `variance` (Mnih et al. 2016, section 9). Each
    number has its own variance, or all share one if `spherical`, as in the paper. The entropy is the differential
    entropy, which may be negative. The entropy of each number is multiplied by its element of `entropy_weights`.
    """

    def __init__(
        self, size: int, spherical: bool = False, entropy_weights: npt.NDArray[np.float64] | None = None
    ) -> None:
        self.heads = {"mean": size, "variance": 1 if spherical else size}
        self.numbers = size
        weights: Array = np.asarray(np.ones(size) if entropy_weights is None else entropy_weights, np.float32)
        self._entropy_weights = weights.sum(keepdims=True) if spherical else weights  # of each variance
        self.action_shape = (size,)
        self.action_dtype = np.dtype(np.float32)

    def noise(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.standard_normal((count, self.numbers))

    def select(self, outputs: Mapping[str, Array], noise: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        return (outputs["mean"] + np.sqrt(self._variance(outputs)) * noise).astype(self.action_dtype)

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
        weights = self._entropy_weights
        entropy: Array = 0.5 * (np.log(variance) @ weights + weights.sum() * np.float32(log_2pi + 1))
        by_mean *= by_log_probability[:, None]
        by_variance *= 0.5 * by_log_probability[:, None]
        by_variance += np.float32(0.5) * weights * by_entropy[:, None] / variance
        by_variance *= _sigmoid(outputs["variance"])  # the slope of softplus
        return {"mean": by_mean, "variance": by_variance}, log_probability, entropy

    @staticmethod
    def _variance(outputs: Mapping[str, Array]) -> Array:
        # log(exp(0) + exp(x)) is a softplus that overflows nowhere.
        variance: Array = np.logaddexp(0, outputs["variance"]) + np.float32(SMALLEST_VARIANCE)
        return variance


class Composite(Distribution):
    """Several independent distributions. An action is the concatenation of their actions, float64 [D].

    Head `mean` of part 1 is the head `mean.1`. log pi is the sum over the parts. The entropy is the sum of the parts'
    entropies times `entropy_weights` (one for each part; 1 if empty).
    """

    def __init__(self, parts: Sequence[Distribution], entropy_weights: Sequence[float] = ()) -> None:
        self.parts = tuple(parts)
        self.heads = {f"{head}.{i}": width for i, part in enumerate(parts) for head, width in part.heads.items()}
        self.numbers = sum(part.numbers for part in parts)
        self.choices = tuple(choice for part in parts for choice in part.choices)
        self.columns = tuple(_consecutive([math.prod(part.action_shape) for part in parts]))
        """The columns of each part's action."""
        self.action_shape = (self.columns[-1].stop,)
        self.action_dtype = np.dtype(np.float64)  # exact for all numbers of actions
        self._noise_columns = tuple(_consecutive([part.numbers for part in parts]))
        self._valid_columns = tuple(_consecutive([sum(part.choices) for part in parts]))
        weights = entropy_weights or [1.0] * len(parts)
        self.max_entropy = sum(weight * part.max_entropy for part, weight in zip(parts, weights, strict=True))
        self._entropy_weights = tuple(map(np.float32, weights))

    def actions_of(self, index: int, a_t: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the actions [B, *action_shape] of the part `index`. `a_t`: [B, D]."""
        part = self.parts[index]
        return a_t[:, self.columns[index]].reshape(-1, *part.action_shape).astype(part.action_dtype)

    def masked(self, outputs: Mapping[str, Array], valid: npt.NDArray[np.bool_] | None) -> Mapping[str, Array]:
        if valid is None or not self.choices:
            return outputs
        replaced = dict(outputs)
        for i, part in enumerate(self.parts):
            for head, values in part.masked(self._outputs_of(i, outputs), valid[:, self._valid_columns[i]]).items():
                replaced[f"{head}.{i}"] = values
        return replaced

    def noise(self, count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return np.concatenate([part.noise(count, rng) for part in self.parts], axis=1)

    def select(self, outputs: Mapping[str, Array], noise: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        columns = enumerate(self._noise_columns)
        return self.joined([self.parts[i].select(self._outputs_of(i, outputs), noise[:, each]) for i, each in columns])

    def mode(self, outputs: Mapping[str, Array]) -> npt.NDArray[Any]:
        return self.joined([part.mode(self._outputs_of(i, outputs)) for i, part in enumerate(self.parts)])

    def log_probability(self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = np.zeros(len(a_t))
        for i, part in enumerate(self.parts):
            found += part.log_probability(self._outputs_of(i, outputs), self.actions_of(i, a_t))
        return found

    def gradient(
        self, outputs: Mapping[str, Array], a_t: npt.NDArray[Any], by_log_probability: Array, by_entropy: Array
    ) -> tuple[dict[str, Array], Array, Array]:
        by_outputs: dict[str, Array] = {}
        log_probability, entropy = np.zeros((2, len(a_t)), np.float32)
        for i, (part, weight) in enumerate(zip(self.parts, self._entropy_weights, strict=True)):
            own, log_probability_i, entropy_i = part.gradient(
                self._outputs_of(i, outputs), self.actions_of(i, a_t), by_log_probability, weight * by_entropy
            )
            by_outputs |= {f"{head}.{i}": by_output for head, by_output in own.items()}
            log_probability += log_probability_i
            entropy += weight * entropy_i
        return by_outputs, log_probability, entropy

    def _outputs_of(self, index: int, outputs: Mapping[str, Array]) -> dict[str, Array]:
        return {head: outputs[f"{head}.{index}"] for head in self.parts[index].heads}

    def joined(self, actions: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the actions [B, D] with these actions of the parts, [B, ...] each."""
        return np.concatenate([each.reshape(len(each), -1) for each in actions], axis=1, dtype=self.action_dtype)


def _consecutive(counts: Sequence[int]) -> Iterator[slice]:
    start = 0
    for count in counts:
        yield slice(start, start + count)
        start += count


def _sigmoid(x: Array) -> Array:
    sigmoid: Array = np.exp(-np.logaddexp(0, -x))  # 1 / (1 + exp(-x)) without overflow
    return sigmoid


def inverse_softplus(variance: float) -> float:
    """Return the bias of the head `variance` with which the initial variance of a `Gaussian` is `variance`.

    Raises ValueError if the variance is not above `SMALLEST_VARIANCE`, 1e-6.
    """
    wanted = variance - SMALLEST_VARIANCE
    if not 0 < wanted < math.inf:
        raise ValueError(f"a variance must be greater than {SMALLEST_VARIANCE}, not {variance}; use, for example, 1.0")
    return wanted + math.log(-math.expm1(-wanted))  # log(exp(v) - 1) without overflow
