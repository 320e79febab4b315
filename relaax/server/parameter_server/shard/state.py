"""The state of a shard: its counters, its ledger of pushes, and snapshots of all of it."""

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
    """The counters of a shard. `version` is the number of updates applied; the others are sums over pushes."""

    version: int = 0
    env_steps: int = 0
    frames: int = 0
    discarded_stale: int = 0
    discarded_not_finite: int = 0
    discarded_loss: int = 0

    @classmethod
    def from_json(cls, counted: Mapping[str, int]) -> Counters:
        """Read the counters of a checkpoint. Raises ValueError if it has others."""
        unknown = sorted(set(counted) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"this version does not know what it counts as {', '.join(unknown)}")
        return cls(**counted)

    @property
    def discarded(self) -> int:
        """Gradients discarded for any reason."""
        return sum(self.discarded_for.values())

    @property
    def discarded_for(self) -> dict[str, int]:
        """Gradients discarded, by reason."""
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
    """The outcome of a push. `staleness` is in versions."""

    discard: Discard
    staleness: int


class PushOutOfOrder(Exception):
    """The push number is neither the next one nor the last one again."""


class Ledger:
    """The last push number of each worker and its outcome; beyond `capacity` workers, the longest silent is forgotten.
    Not thread-safe: it is used under its shard's lock.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._last: OrderedDict[str, tuple[int, Outcome]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def repeated(self, worker: str, push_id: int) -> Outcome | None:
        """Return the outcome of this push if it was counted before, None if it is the next. Raises PushOutOfOrder if
        neither.
        """
        last, outcome = self._last.get(worker, (0, None))
        if push_id == last and outcome is not None:
            return outcome
        if push_id != last + 1:
            raise PushOutOfOrder(f"push {push_id} after push {last}: the next one is {last + 1}")
        return None

    def has(self, worker: str, push_id: int) -> bool:
        """Return whether this push was the last that was counted."""
        return worker in self._last and self._last[worker][0] == push_id

    def record(self, worker: str, push_id: int, outcome: Outcome) -> None:
        """Remember the outcome of the worker's newest push."""
        self._last[worker] = (push_id, outcome)
        self._last.move_to_end(worker)
        if len(self._last) > self._capacity:
            self._last.popitem(last=False)

    def forget(self, worker: str) -> None:
        """Forget a worker that has left."""
        self._last.pop(worker, None)

    def as_json(self) -> dict[str, list[int]]:
        """Return worker to [push number, discard, staleness], the longest silent first."""
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
    """The target network, float32 [size], which never changes, and its generation."""

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
    """Return a value that is the same as long as a shard's state is."""
    return (counters, statistics) if target is None else (counters, statistics, target.generation)


Arrays = Mapping[str, npt.NDArray[Any]]


class SnapshotMemory:
    """Memory for copies of arrays like these, whose pages the kernel has already mapped.

    Touching fresh pages costs several times what copying costs: measured for 200 MB, 165 ms instead of 25. So it is
    made while nobody waits, and `take` is called under the lock.
    """

    def __init__(self, like: Arrays) -> None:
        self._memory = {name: np.empty(array.shape, array.dtype) for name, array in like.items()}

    def touch(self) -> None:
        """Make the kernel map the pages. Python's lock is free meanwhile."""
        for memory in self._memory.values():
            memory.fill(0)

    def take(self, arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return read-only copies, once. Names, shapes and dtypes must be the same."""
        memory, self._memory = self._memory, {}
        for name, array in arrays.items():
            np.copyto(memory[name], array)
            memory[name].flags.writeable = False
        return memory
