"""The state of a shard: its counters, its ledger of pushes, and snapshots of the whole state."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.optim.optimizers import Slots
from relaax.optim.vector import FlatVector
from relaax.parameters.moments import Moments


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of a shard. `version` is the number of applied updates; the others are sums over pushes."""

    version: int = 0
    env_steps: int = 0
    frames: int = 0
    discarded_stale: int = 0
    discarded_not_finite: int = 0
    discarded_loss: int = 0

    @classmethod
    def from_json(cls, counted: Mapping[str, int]) -> Counters:
        """Convert the counters of a checkpoint. Raises ValueError if it has unknown ones."""
        unknown = sorted(set(counted) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"this version does not support its counters {', '.join(unknown)}")
        return cls(**counted)

    @property
    def discarded(self) -> int:
        """Number of gradients discarded for any reason."""
        return sum(self.discarded_for.values())

    @property
    def discarded_for(self) -> dict[str, int]:
        """Number of discarded gradients by reason."""
        return {
            "stale": self.discarded_stale,
            "not_finite": self.discarded_not_finite,
            "loss": self.discarded_loss,
        }


class Discard(enum.IntEnum):
    """The reason why a gradient was not applied. Values are those of the wire."""

    NONE = 0
    STALE = 1
    INCARNATION = 2
    NOT_FINITE = 3
    LOSS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a push. `staleness` is a number of versions."""

    discard: Discard
    staleness: int


class PushOutOfOrder(Exception):
    """The push number is neither the next one nor a repetition of the last one."""


class Ledger:
    """The last push number of each worker and its outcome. Not thread-safe: its shard's lock guards it.

    Beyond `capacity` workers, the entry of the longest silent worker is dropped.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._last: OrderedDict[str, tuple[int, Outcome]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def recorded_outcome(self, worker: str, push_id: int) -> Outcome | None:
        """Return the outcome of this push if it repeats the last one; None if it is the next one.

        Raises PushOutOfOrder otherwise.
        """
        last, outcome = self._last.get(worker, (0, None))
        if push_id == last and outcome is not None:
            return outcome
        if push_id != last + 1:
            raise PushOutOfOrder(f"push {push_id} after push {last}: the next one is {last + 1}")
        return None

    def has(self, worker: str, push_id: int) -> bool:
        """Return whether this is the worker's last recorded push."""
        return worker in self._last and self._last[worker][0] == push_id

    def record(self, worker: str, push_id: int, outcome: Outcome) -> None:
        """Record the outcome of the worker's newest push."""
        self._last[worker] = (push_id, outcome)
        self._last.move_to_end(worker)
        if len(self._last) > self._capacity:
            self._last.popitem(last=False)

    def remove(self, worker: str) -> None:
        """Remove the entry of a worker."""
        self._last.pop(worker, None)

    def as_json(self) -> dict[str, list[int]]:
        """Return [push number, discard, staleness] by worker, the longest silent first."""
        return {
            worker: [push_id, int(outcome.discard), outcome.staleness]
            for worker, (push_id, outcome) in self._last.items()
        }

    def restore(self, entries: Mapping[str, Any]) -> None:
        """Restore what `as_json` returned."""
        self._last = OrderedDict(
            (worker, (int(push_id), Outcome(Discard(discard), int(staleness))))
            for worker, (push_id, discard, staleness) in entries.items()
        )


Statistics = Mapping[str, Moments]


@dataclass(frozen=True, slots=True)
class TargetCopy:
    """An immutable copy of the target network, float32 [size], and its generation."""

    generation: int
    vector: FlatVector


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a shard at one moment. `target` is None if the algorithm declares none."""

    parameters: FlatVector
    slots: Slots
    counters: Counters
    ledger: Mapping[str, Any]
    statistics: Statistics = field(default_factory=dict)
    target: TargetCopy | None = None

    @property
    def mark(self) -> object:
        """The mark of this state."""
        return mark(self.counters, self.statistics, self.target)


def mark(counters: Counters, statistics: Statistics, target: TargetCopy | None) -> object:
    """Return a value that changes whenever a shard's state changes."""
    return (counters, statistics) if target is None else (counters, statistics, target.generation)


Arrays = Mapping[str, npt.NDArray[Any]]


class SnapshotMemory:
    """Memory for copies of arrays with the shapes of `like`. Its pages are mapped in advance.

    Touching new pages takes several times as long as copying: for 200 MB, 165 ms instead of 25 ms (measured). Therefore
    the memory is allocated without the lock, and only `fill` is called under it.
    """

    def __init__(self, like: Arrays) -> None:
        self._memory = {name: np.empty(array.shape, array.dtype) for name, array in like.items()}

    def touch(self) -> None:
        """Make the kernel map the pages. NumPy releases the interpreter's lock meanwhile."""
        for memory in self._memory.values():
            memory.fill(0)

    def fill(self, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Copy the arrays and return the read-only copies. Called once. Names, shapes and dtypes must match."""
        memory, self._memory = self._memory, {}
        for name, array in arrays.items():
            np.copyto(memory[name], array)
            memory[name].flags.writeable = False
        return memory
