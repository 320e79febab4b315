"""What an agent computes to act, as data: for programs that write it down in a form of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.specification import NetworkSpec

Vector = npt.NDArray[np.floating[Any]]

LIMIT = 10.0
"""Normalised observations are cut to plus or minus this: a network knows nothing of what is further out."""


@dataclass(frozen=True, slots=True)
class LargestOutput:
    """An action that is the index of the largest output of a head, and `start`: int64 [N]."""

    head: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class LargestOutputs:
    """An action of several choices: of so many outputs of a head each, side by side, the largest's index; int64 [N, K].

    `choices`: how many outputs each of the K choices has.
    """

    head: str
    choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PositiveOutputs:
    """An action of bits: 1 where an output of a head is positive, int8 [N, *shape]."""

    head: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScaledOutput:
    """Actions of real numbers: centre + radius * a head's outputs, cut to low and high; float64 [D] each."""

    head: str
    centre: Vector
    radius: Vector
    low: Vector
    high: Vector


GreedyAction = LargestOutput | LargestOutputs | PositiveOutputs | ScaledOutput
"""How the action that is taken greedily follows from the outputs."""


@dataclass(frozen=True, slots=True)
class PolicyGraph:
    """From observations to the action that is taken greedily.

    Observations are encoded as by `ObservationEncoder`, with `history` frames of an image, which is the part `image` of
    several. If there is a `mean`, inputs
    (those of images from 0 to 1) become (x - mean) / std, float64 as they are shaped, cut to plus and minus `limit`.
    Then come the network and the action; `heads` are the outputs that describe the policy.
    """

    network: NetworkSpec
    parameters: npt.NDArray[np.float32]
    heads: tuple[str, ...]
    action: GreedyAction
    history: int = 1
    mean: Vector | None = None
    std: Vector | None = None
    image: int | None = None
    limit: float = LIMIT
