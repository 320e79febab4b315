"""Policies for action spaces, and the conversion of their actions to leaves of the space."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.acting.policy_graph import (
    GreedyAction,
    LargestOutput,
    LargestOutputs,
    PositiveOutputs,
    ScaledOutput,
)
from relaax.algorithm_base.agent import Leaves, Mask
from relaax.configuration.errors import unknown
from relaax.nn.distributions import (
    Bernoulli,
    Categorical,
    Composite,
    Distribution,
    Gaussian,
    MultiCategorical,
    inverse_softplus,
)
from relaax.rlx import Box, Dict, Discrete, ElementarySpace, MultiBinary, MultiDiscrete, Space, Tuple

Array = npt.NDArray[Any]


class ActionMap:
    """The policy of an action space, and the conversion of its actions to leaves.

    A Discrete, MultiDiscrete or MultiBinary has a `Categorical`, `MultiCategorical` or `Bernoulli`. Boxes of real
    numbers have a `Gaussian` (see `_Reals`). A Tuple or Dict of several kinds has a `Composite` with one distribution
    for each leaf.
    """

    def __init__(
        self, space: Space, *, spherical: bool = False, entropy_weights: Mapping[str, float] | None = None
    ) -> None:
        """Make the policy. `spherical`: one variance for all numbers of a Gaussian.

        `entropy_weights`: by path of a part. They do not change the policy's heads.
        """
        elements = list(space.elements())
        weights = [_weight_of(path, entropy_weights or {}) for path in paths_of(space)]
        boxes = [element for element in elements if isinstance(element, Box)]
        self._space = space
        self._parts: list[_Kind]
        self.policy: Distribution
        if len(boxes) == len(elements):
            self._parts = [_Reals(boxes, spherical, weights)]
        else:
            self._parts = [_kind_of(element, spherical) for element in elements]
        self._reals = [part for part in self._parts if isinstance(part, _Reals)]
        if len(self._parts) == 1:
            self.policy = self._parts[0].policy
        else:
            self.policy = Composite([part.policy for part in self._parts], weights)

    def __call__(self, actions: Array, unwanted: Mask | None = None) -> Leaves:
        """Return the policy's actions [N, *action_shape] as leaves of the space.

        `unwanted`: bool [N], rows that environments ignore, so that `clipped_share` does not count them.
        """
        for reals in self._reals:
            reals.unwanted = unwanted
        if len(self._parts) == 1:
            return self._parts[0].leaves(actions)
        composite = self.policy
        assert isinstance(composite, Composite)
        return [
            leaf for index, part in enumerate(self._parts) for leaf in part.leaves(composite.actions_of(index, actions))
        ]

    def actions_of(self, leaves: Leaves) -> Array:
        """Return the policy's actions [N, *action_shape] that become these leaves of the space.

        A real number at a bound becomes an action at that bound. Rows with NaN become rows without meaning.
        """
        counts = [len(part.boxes) if isinstance(part, _Reals) else 1 for part in self._parts]
        ends = np.cumsum(counts).tolist()
        with np.errstate(all="ignore"):
            actions = [
                part.actions_of(leaves[end - count : end])
                for part, count, end in zip(self._parts, counts, ends, strict=True)
            ]
        policy = self.policy
        return policy.joined(actions) if isinstance(policy, Composite) else actions[0].astype(policy.action_dtype)

    def greedy(self) -> tuple[GreedyAction, ...]:
        """Return how to compute the most probable action from the outputs, as data."""
        return tuple(part.greedy(f".{i}" * (len(self._parts) > 1)) for i, part in enumerate(self._parts))

    def initial_biases(self, variance: float) -> dict[str, float]:
        """Return the biases of the heads with which the Gaussians' initial variance is `variance`."""
        bias = inverse_softplus(variance)
        return {head: bias for head in self.policy.heads if head.startswith("variance")}

    def unused_bounds(self) -> str | None:
        """Return a warning about the first finite bound that counts as unbounded, or None."""
        for path, element in zip(self._space.paths(), self._space.elements(), strict=True):
            if isinstance(element, Box):
                bounds = np.stack([element.low, element.high], axis=-1).reshape(-1)
                unused = np.flatnonzero((np.abs(bounds) >= LARGEST_BOUND) & np.isfinite(bounds))
                if unused.size:
                    return (
                        f"the bound {bounds[unused[0]]:g} of action{path} element {unused[0] // 2} is not below "
                        f"{LARGEST_BOUND:,.0f}; the element counts as unbounded and its first actions are near 0; if "
                        "the bound is real, scale the action space"
                    )
        return None

    def clipped_share(self) -> float | None:
        """Return the share of the real numbers since the last call that were clipped. None: there were no numbers."""
        clipped = numbers = 0
        for reals in self._reals:
            clipped, numbers = clipped + reals.clipped, numbers + reals.numbers
            reals.clipped = reals.numbers = 0
        return clipped / numbers if numbers else None


class _Kind(ABC):
    """One distribution, and the leaves that its actions become."""

    policy: Distribution

    @abstractmethod
    def leaves(self, actions: Array) -> Leaves:
        """Return the actions [N, *action_shape] as leaves."""

    @abstractmethod
    def actions_of(self, leaves: Leaves) -> Array:
        """Return the actions [N, *action_shape] that become these leaves."""

    @abstractmethod
    def greedy(self, suffix: str) -> GreedyAction:
        """Return how to compute the most probable action. `suffix`: of the names of the heads."""


class _Choice(_Kind):
    def __init__(self, space: Discrete) -> None:
        self.policy, self._start = Categorical(space.n), space.start

    def leaves(self, actions: Array) -> Leaves:
        return [actions + self._start]

    def actions_of(self, leaves: Leaves) -> Array:
        return leaves[0] - self._start

    def greedy(self, suffix: str) -> GreedyAction:
        return LargestOutput(f"policy{suffix}", self._start)


class _Choices(_Kind):
    def __init__(self, space: MultiDiscrete) -> None:
        self.policy = MultiCategorical(space.nvec)

    def leaves(self, actions: Array) -> Leaves:
        return [actions]

    def actions_of(self, leaves: Leaves) -> Array:
        return leaves[0]

    def greedy(self, suffix: str) -> GreedyAction:
        return LargestOutputs(f"policy{suffix}", self.policy.choices)


class _Bits(_Kind):
    def __init__(self, space: MultiBinary) -> None:
        self.policy, self._shape = Bernoulli(math.prod(space.shape)), space.shape

    def leaves(self, actions: Array) -> Leaves:
        return [actions.reshape(-1, *self._shape)]

    def actions_of(self, leaves: Leaves) -> Array:
        return leaves[0].reshape(len(leaves[0]), -1)

    def greedy(self, suffix: str) -> GreedyAction:
        return PositiveOutputs(f"policy{suffix}", self._shape)


LARGEST_BOUND = 1e6
"""Bounds of at least this size count as unbounded: spaces often give ±3.4e38, the largest float32."""


class _Reals(_Kind):
    """Normally distributed actions u, float32 [N, D], for Boxes of real numbers.

    If a dimension is bounded on both sides, below `LARGEST_BOUND`, u from -1 to 1 spans it. In other dimensions u is
    added to the number within the bounds that is nearest to 0. The result is clipped to the bounds. Clipping is part of
    the environment: the policy samples u and computes the likelihood of u before clipping, so the policy gradient is
    unbiased.
    """

    def __init__(self, boxes: list[Box], spherical: bool, entropy_weights: list[float]) -> None:
        """Make the policy. `entropy_weights`: one for each box."""
        sizes = [math.prod(box.shape) for box in boxes]
        self.policy = Gaussian(sum(sizes), spherical, np.repeat(entropy_weights, sizes))
        self.boxes = boxes
        self._low = np.concatenate([box.low.reshape(-1) for box in boxes])
        self._high = np.concatenate([box.high.reshape(-1) for box in boxes])
        bounded = np.maximum(np.abs(self._low), np.abs(self._high)) < LARGEST_BOUND
        low, high = (np.where(bounded, bound, 0.0) / 2 for bound in (self._low, self._high))
        nearest = np.clip(0.0, self._low, self._high)
        self._centre = np.where(bounded, low + high, nearest)
        self._radius = np.where(bounded, high - low, 1.0)
        self.clipped = self.numbers = 0
        """Counts of numbers that were clipped, and of all numbers."""
        self.unwanted: Mask | None = None
        """Rows of the next actions that are not counted."""

    def leaves(self, actions: Array) -> Leaves:
        mapped = self._centre + self._radius * actions
        within = np.minimum(np.maximum(mapped, self._low), self._high)
        clipped = within != mapped
        if self.unwanted is not None:
            clipped = clipped[~self.unwanted]
        self.clipped += int(np.count_nonzero(clipped))
        self.numbers += clipped.size
        leaves, start = [], 0
        for box in self.boxes:
            end = start + math.prod(box.shape)
            leaves.append(within[:, start:end].reshape(-1, *box.shape).astype(box.dtype))
            start = end
        return leaves

    def actions_of(self, leaves: Leaves) -> Array:
        numbers = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1, dtype=np.float64)
        radius = np.where(self._radius > 0, self._radius, 1.0)  # 0 if both bounds are equal
        return (numbers - self._centre) / radius

    def greedy(self, suffix: str) -> GreedyAction:
        return ScaledOutput(f"mean{suffix}", self._centre, self._radius, self._low, self._high)


def _kind_of(element: ElementarySpace, spherical: bool) -> _Kind:
    if isinstance(element, Discrete):
        return _Choice(element)
    if isinstance(element, MultiDiscrete):
        return _Choices(element)
    if isinstance(element, MultiBinary):
        return _Bits(element)
    assert isinstance(element, Box)
    return _Reals([element], spherical, [1.0])


def paths_of(space: Space) -> list[str]:
    """Return the path of each leaf, such as "aim" or "arms/0"; "" for the leaf of an elementary space."""
    parts: Mapping[Any, Space]
    if isinstance(space, Dict):
        parts = space.spaces
    elif isinstance(space, Tuple):
        parts = dict(enumerate(space.spaces))
    else:
        return [""]
    return [f"{key}/{path}" if path else str(key) for key, part in parts.items() for path in paths_of(part)]


def _weight_of(path: str, weights: Mapping[str, float]) -> float:
    """Return the weight of a leaf: that of its path, or of the nearest Tuple or Dict which has it; else 1."""
    while path not in weights:
        path, separator, _ = path.rpartition("/")
        if not separator:
            return 1.0
    return weights[path]


def actions_refusal(space: Space, entropy_weights: Mapping[str, float]) -> str | None:
    """Return the end of a sentence that refuses the space or the weights; None if `ActionMap` supports them."""
    for element in space.elements():
        if isinstance(element, Box) and element.dtype.kind != "f":
            return (
                f"a Box of {element.dtype} is not supported; use Discrete or MultiDiscrete for whole numbers, or a Box "
                "of float32"
            )
    leaves = paths_of(space)
    parts = {"/".join(path.split("/")[: depth + 1]): None for path in leaves for depth in range(path.count("/") + 1)}
    for path in entropy_weights:
        if len(leaves) == 1:
            return f"algorithm.entropy_weights names {path!r}, and an action has one part only; use entropy_beta"
        if path not in parts:
            return f"algorithm.entropy_weights: {unknown('part of the actions', path, parts)}"
    return None
