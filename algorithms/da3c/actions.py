"""The policy for a space of discrete actions, and its actions as those of the space."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from relaax.algorithm_base import Box, Discrete, Leaves, MultiBinary, MultiDiscrete, Space
from relaax.algorithm_base.config import space_size
from relaax.algorithm_base.policy_graph import GreedyAction, LargestOutput, LargestOutputs, PositiveOutputs
from relaax.nn.distributions import Bernoulli, Categorical, Distribution, MultiCategorical

HEAD = "policy"


def policy_of(space: Space) -> Distribution:
    """Return the policy for a space that is not refused: of choices or bits that do not depend on each other."""
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(space.nvec)
    if isinstance(space, MultiBinary):
        return Bernoulli(space_size(space))
    return Categorical(space_size(space))


def greedy_action(space: Space) -> GreedyAction:
    """Return how the most probable action follows from the outputs."""
    if isinstance(space, MultiDiscrete):
        return LargestOutputs(HEAD, space.nvec)
    if isinstance(space, MultiBinary):
        return PositiveOutputs(HEAD, space.shape)
    return LargestOutput(HEAD, _first(space))


def leaves_of(space: Space, actions: npt.NDArray[Any]) -> Leaves:
    """Return the policy's actions [N, ...] as leaves of the space, whose dtype they have."""
    if isinstance(space, MultiBinary):
        return [actions.reshape(-1, *space.shape)]
    return [actions if isinstance(space, MultiDiscrete) else actions + _first(space)]


def action_refusal(space: Space) -> str | None:
    """Return the spaces that can be handled, where `space` is none of them; else None."""
    if isinstance(space, Discrete | MultiDiscrete | MultiBinary):
        return None
    real = all(isinstance(box, Box) and box.dtype.kind == "f" for box in space.elements())
    return "it handles Discrete, MultiDiscrete and MultiBinary" + ("; da3c_cont handles real numbers" if real else "")


def _first(space: Space) -> int:
    assert isinstance(space, Discrete)  # others were refused before
    return space.start
