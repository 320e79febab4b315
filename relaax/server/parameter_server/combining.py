"""What becomes of the gradients of many workers before the optimizer of their shard takes them.

Each shard does it for its own range. With several shards the gradients of workers may reach them in another order, so
that a window may hold others on one shard than on another; asynchronous training bears that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.optim.optimizers import Slots
from relaax.optim.vector import FlatVector, Vector


class CombinerSpec(ABC):
    """Which way, with which constants: a value."""

    @abstractmethod
    def create(self, size: int) -> Combiner:
        """A live combiner of gradients of `size` elements."""


class Combiner(ABC):
    """A live one. Not thread-safe: it lives under its shard's lock."""

    @property
    def pending(self) -> int:
        """Gradients that were taken and are in no update yet."""
        return 0

    def begin(self, version: int, parameters: Vector) -> None:  # noqa: B027
        """The shard begins with these parameters as this version: at the start, and after a restore."""

    def applied(self, version: int, parameters: Vector) -> None:  # noqa: B027
        """An update has made these parameters, as this version."""

    @abstractmethod
    def reaches(self, base_version: int) -> bool:
        """Whether a gradient that was computed on this version can be taken; one that cannot is too stale."""

    @abstractmethod
    def take(self, gradient: FlatVector, base_version: int) -> FlatVector | None:
        """A gradient, float32 [size], that is finite. What is to be applied now; None where there is nothing."""

    def slots(self) -> Slots:
        """State that a checkpoint keeps, of `size` elements each, or of one. To be copied before the next `take`."""
        return {}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:  # noqa: B027
        """Continue from saved slots; where they are another combiner's or none, with nothing pending."""


SLOTS = frozenset({"pending_sum", "pending_count"})
"""The names of all combiners' slots, so that they can be told from an optimizer's."""


@dataclass(frozen=True)
class Fifo(CombinerSpec):
    """First in, first out: every gradient is an update, in the order in which they come (Mnih et al. 2016)."""

    def create(self, size: int) -> Combiner:
        return Uncombined()


@dataclass(frozen=True)
class Average(CombinerSpec):
    """The mean of every `window` gradients is one update, whichever workers they come from.

    A version is an update: it does not change while gradients wait. Staleness is what it is at the arrival of each
    gradient, and gradients of any permitted staleness go into one mean. The learning rate is that of the gradient that
    completes the window. What waits is state: a checkpoint has it, and a restored shard goes on in mid-window.
    """

    window: int

    def create(self, size: int) -> Combiner:
        return _Average(size, self.window)


@dataclass(frozen=True)
class DelayCompensated(CombinerSpec):
    """A gradient is corrected by what changed since its base (Zheng et al. 2017, DC-ASGD, Algorithm 2).

    g + λ·g·g·(θ_now − θ_base), element by element: g·g stands for the diagonal of the Hessian, so this is the gradient
    at θ_now to first order. `strength` is λ; with 0 it is Fifo. θ_base comes from a ring of the newest `reach` + 1
    versions, which are snapshots that never change; a gradient older than that is too stale. The ring is no state: a
    restored shard has its current version only, and gradients of an earlier life are refused anyway.
    """

    strength: float
    reach: int

    def create(self, size: int) -> Combiner:
        return _DelayCompensated(self.strength, self.reach)


class Uncombined(Combiner):
    """Every gradient is applied as it comes."""

    def reaches(self, base_version: int) -> bool:
        return True

    def take(self, gradient: FlatVector, base_version: int) -> FlatVector | None:
        return gradient


class _Average(Combiner):
    def __init__(self, size: int, window: int) -> None:
        self._window = window
        self._sum = np.zeros(size, np.float32)
        self._count = 0

    @property
    def pending(self) -> int:
        return self._count

    def reaches(self, base_version: int) -> bool:
        return True

    def take(self, gradient: FlatVector, base_version: int) -> FlatVector | None:
        self._sum += gradient
        self._count += 1
        if self._count < self._window:
            return None
        mean: FlatVector = self._sum / np.float32(self._count)
        self._sum.fill(0)
        self._count = 0
        return mean

    def slots(self) -> Slots:
        return {"pending_sum": self._sum, "pending_count": np.array([self._count], np.int64)}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        self._sum.fill(0)
        self._count = 0
        if slots.keys() == SLOTS:
            found = slots["pending_sum"]
            if found.shape != self._sum.shape:
                raise ValueError(f"a pending mean has {len(self._sum)} numbers, that of the checkpoint {len(found)}")
            self._sum += found
            self._count = int(slots["pending_count"][0])


class _DelayCompensated(Combiner):
    def __init__(self, strength: float, reach: int) -> None:
        self._strength = np.float32(strength)
        self._ring: deque[tuple[int, FlatVector]] = deque(maxlen=reach + 1)

    def begin(self, version: int, parameters: Vector) -> None:
        self._ring.clear()
        self.applied(version, parameters)

    def applied(self, version: int, parameters: Vector) -> None:
        self._ring.append((version, parameters.snapshot()))

    def reaches(self, base_version: int) -> bool:
        return base_version >= self._ring[0][0]

    def take(self, gradient: FlatVector, base_version: int) -> FlatVector | None:
        now = self._ring[-1][1]
        base = self._ring[base_version - self._ring[0][0]][1]
        if base is now or not self._strength:
            return gradient
        with np.errstate(all="ignore"):  # what comes out is checked
            compensated: FlatVector = np.subtract(now, base)
            compensated *= gradient
            compensated *= self._strength
            compensated += 1
            compensated *= gradient
        return compensated
