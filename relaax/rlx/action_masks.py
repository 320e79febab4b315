"""Action masks: a part of a Dict observation that marks the actions which are valid now.

A mask has one element for each action of each choice of the action space, in the order of the leaves; nonzero means
valid. In the protocol it is a part like any other. Agents, and clients that act at random, read it.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx.array_spaces import Discrete, ElementarySpace, MultiDiscrete, Space

ACTION_MASK = "action_mask"
"""Default key of action masks, as in PettingZoo."""

Mask = npt.NDArray[np.bool_]


def choices_of(action_space: Space) -> tuple[int, ...]:
    """Return the number of actions of each choice that a mask can restrict: Discrete and MultiDiscrete, in order."""
    counts: list[int] = []
    for element in action_space.elements():
        if isinstance(element, Discrete):
            counts.append(element.n)
        elif isinstance(element, MultiDiscrete):
            counts += element.nvec
    return tuple(counts)


def leaves_named(name: str, space: Space) -> list[int]:
    """Return the indices of the leaves whose key in a Dict is `name`."""
    return [index for index, path in enumerate(space.paths()) if path.endswith(f"[{name!r}]")]


def mask_length(element: ElementarySpace) -> int:
    """Return the number of elements of a leaf; 0 for a Discrete, whose value is the index of one element."""
    return 0 if isinstance(element, Discrete) else math.prod(element.shape)


def mask_leaf(name: str, observation_space: Space, action_space: Space) -> int | None:
    """Return the index of the leaf `name` if it is the only one and fits the choices of the actions; else None."""
    found, length = leaves_named(name, observation_space), sum(choices_of(action_space))
    if len(found) != 1 or not length or mask_length(list(observation_space.elements())[found[0]]) != length:
        return None
    return found[0]


def read_mask(leaf: npt.NDArray[Any], choices: tuple[int, ...]) -> tuple[Mask, Mask]:
    """Return a leaf [N, ...] as masks, bool [N, elements], and where a choice has no valid action, bool [N].

    There, all actions are marked as valid.
    """
    valid = np.asarray(leaf.reshape(len(leaf), -1) != 0, np.bool_)
    blocked: Mask = np.asarray(~np.logical_or.reduceat(valid, _starts(choices), axis=1).all(axis=1), np.bool_)
    if blocked.any():
        valid[blocked] = True
    return valid, blocked


@cache
def _starts(choices: tuple[int, ...]) -> tuple[int, ...]:
    return 0, *accumulate(choices[:-1])
