"""Greedy policies as data, for export to other formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.specification import NetworkSpec

Vector = npt.NDArray[np.floating[Any]]

LIMIT = 10.0
"""Bound of normalised observations: they are clipped to plus and minus this number."""


@dataclass(frozen=True, slots=True)
class LargestOutput:
    """An action that is the index of the largest output of a head, plus `start`: int64 [N]. Masks apply to outputs."""

    head: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class LargestOutputs:
    """An action of K choices, int64 [N, K]: for each, the index of the largest of its outputs.

    `choices`: the number of outputs of each choice. The outputs of a head are concatenated in this order.
    """

    head: str
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PositiveOutputs:
    """An action of bits, int8 [N, *shape]: 1 where an output of a head is positive."""

    head: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScaledOutput:
    """An action of real numbers: centre + radius * a head's outputs, clipped to low and high; float64 [D] each.

    `squashed`: tanh is applied to the outputs first.
    """

    head: str
    centre: Vector
    radius: Vector
    low: Vector
    high: Vector
    squashed: bool = False


GreedyAction = LargestOutput | LargestOutputs | PositiveOutputs | ScaledOutput
"""A rule that computes the greedy action from the outputs."""


@dataclass(frozen=True, slots=True)
class PolicyGraph:
    """The computation of the greedy action from observations.

    `ObservationEncoder` encodes the observations, with the arguments `history` and `image`.
    If there is a `mean`, inputs x (pixels from 0 to 1) become (x - mean) / std, clipped to plus and minus `limit`;
    `mean` and `std` are float64 in the shape of the inputs. Then the network computes its outputs, and each rule of
    `action` the next leaves of the action. `heads`: the outputs that describe the policy. `mask`: the index of the
    observation's leaf that is the action mask (see `relaax.algorithm_base.acting.masks`); None without a mask.
    """

    network: NetworkSpec
    parameters: npt.NDArray[np.float32]
    heads: tuple[str, ...]
    action: tuple[GreedyAction, ...]
    history: int = 1
    mean: Vector | None = None
    std: Vector | None = None
    image: int | None = None
    limit: float = LIMIT
    mask: int | None = None
