"""A table of items: writers insert batches, samplers draw, and a full table evicts items."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.spec import DEMONSTRATION, Frames, TableSpec
from relaax.replay.table.frame_store import FrameSlots, FrameStore
from relaax.replay.table.items import Items
from relaax.replay.table.table_copy import (
    NO_SLOTS,
    TableCopy,
    checked_slots,
    generator_from_state,
    generator_state,
    piece_range,
)
from relaax.replay.table.trees import (
    InverseTree,
    ItemSampler,
    Keys,
    MaxTree,
    MinTree,
    Priorities,
    Slots,
    checked_priorities,
)
from relaax.replay.table.writers import FrameStoreFull, State, Writer, Writers, checked_columns, checked_frames

Column = npt.NDArray[Any]
_FIRST_PRIORITY = 1.0


@dataclass(frozen=True, slots=True)
class InsertResult:
    """The result of an insert: the keys uint64 [B] of its items; empty if it was a duplicate."""

    keys: Keys
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """Items that were drawn with replacement.

    keys: uint64 [n].
    probabilities: float64 [n], the probability of each item in one draw from this table.
    ages: int64 [n], number of items that were inserted after each item.
    columns: [n, *shape] of each field, by name; stacks [n, h, w, c·H], oldest frame first.
    size, total_priority: values of the table at the time of the draw.
    """

    keys: Keys
    probabilities: Priorities
    ages: npt.NDArray[np.int64]
    columns: dict[str, Column]
    size: int
    total_priority: float


@dataclass(slots=True)
class Totals:
    """Counters of a table: items, duplicate inserts, and priority updates for items that were gone."""

    inserted: int = 0
    sampled: int = 0
    removed: int = 0
    duplicates: int = 0
    stale_updates: int = 0


class Table:
    """A table of items with the same fields. `seed`: seed of the draws.

    Thread-safe: one lock, and long operations release Python's global lock.
    """

    def __init__(self, spec: TableSpec, seed: int) -> None:
        self.spec = spec
        self._lock = threading.Lock()
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._clear()

    def _clear(self) -> None:
        spec = self.spec
        self._items = Items(spec.capacity)
        self._columns: dict[str, Column] = {
            name: np.zeros((spec.capacity, *field.shape), field.dtype) for name, field in spec.plain.items()
        }
        self._stacks: dict[str, FrameSlots] = {
            name: np.zeros((spec.capacity, field.frames), np.int32) for name, field in spec.stacked.items()
        }
        self._frames = None if spec.frame is None else FrameStore(spec.frame_capacity, spec.frame)
        self._sampler = ItemSampler(spec.capacity, spec.alpha if spec.sampler == "prioritized" else None)
        self._priorities = MaxTree(spec.capacity)
        self._evictor: MinTree | InverseTree | None = None  # None: the oldest item is evicted
        if spec.remover == "lowest_priority":
            self._evictor = MinTree(spec.capacity)
        elif spec.remover == "inverse_priority":
            self._evictor = InverseTree(spec.capacity, spec.remover_exponent)
        self._writers = Writers()
        self._totals = Totals()

    @property
    def size(self) -> int:
        """Number of items."""
        return self._items.size

    @property
    def total_priority(self) -> float:
        """Σ priority ** alpha; the number of items for a uniform sampler."""
        return self._sampler.total

    @property
    def totals(self) -> Totals:
        """A copy of the counters."""
        with self._lock:
            return replace(self._totals)

    @property
    def frames(self) -> int:
        """Number of single frames in the store."""
        return self._frames.capacity - self._frames.free if self._frames else 0

    def insert(
        self,
        writer: str,
        sequence: int,
        columns: Mapping[str, npt.ArrayLike],
        priorities: npt.ArrayLike | None = None,
        frames: npt.ArrayLike | None = None,
        first_frame: int = 0,
        keep_from: int = 0,
    ) -> InsertResult:
        """Insert B items, as insert number `sequence` (1, 2, 3, ...) of `writer`.

        columns: [B, *shape] of each field, of its dtype. A stack of H frames is int64 [B, H]: the writer's numbers of
            single frames, oldest first; -1 is a frame of zeros, before an episode's start.
        priorities: [B]; None for the largest priority in the table, or 1.0 if the table is empty.
        frames: uint8 [F, h, w, c], the writer's frames from number `first_frame` on. If they do not follow the frames
            that were sent before, the table drops the writer's earlier frames, and items must not refer to them.
        keep_from: the lowest frame number that later inserts refer to.

        If the number is not higher than that of the writer's last insert, nothing changes. A full table evicts earlier
        items; if no slots for frames are left, it evicts the oldest items. Raises SequenceGap, UnknownFrames and
        FrameStoreFull, and ValueError if the insert is malformed or larger than the table. After an error, nothing has
        changed.
        """
        with self._lock:
            known = self._writers.get(writer)
            if known.is_duplicate(sequence):
                self._totals.duplicates += 1
                return InsertResult(np.zeros(0, np.uint64), duplicate=True)
            count, checked = checked_columns(self.spec, columns)
            new = checked_frames(self.spec, frames, first_frame)
            positions = {name: known.positions(checked[name], first_frame, len(new)) for name in self._stacks}
            weights = (
                np.full(count, self._default_priority())
                if priorities is None
                else checked_priorities(priorities, count)
            )
            self._check_frame_capacity(known, len(new), first_frame)

            stacks = self._store_frames(known, new, first_frame, positions)
            self._evict_for(count)
            slots, keys = self._items.add(count)
            for name, stack in stacks.items():
                self._stacks[name][slots] = stack
            for name, column in self._columns.items():
                column[slots] = checked[name]
            self._set_priorities(slots, keys, weights)
            if self._frames:
                self._frames.release(known.drop_frames(keep_from))
            known.sequence = sequence
            self._writers.put(writer, known)
            self._totals.inserted += count
            return InsertResult(keys)

    def sample(self, count: int, out: Mapping[str, Column] | None = None) -> Sample:
        """Draw `count` items with replacement. Raises ValueError if the table is empty or `count` is below 1.

        out: optional contiguous arrays for all columns, of their shapes and dtypes, to which the columns are written.
        """
        if count < 1:
            raise ValueError(f"a sample must have at least 1 item, not {count}")
        with self._lock:
            if not self._items.size:
                raise ValueError(f"table {self.spec.name!r} is empty: insert first, or wait for the rate limiter")
            slots, probabilities = self._sampler.draw(count, self._random, self._items.occupied)
            into = out or {}
            columns: dict[str, Column] = {
                name: column.take(slots, axis=0, out=into.get(name), mode="clip")  # mode "raise" makes another copy
                for name, column in self._columns.items()
            }
            if self._frames:
                columns |= {
                    name: self._frames.stacks(stack[slots], into.get(name)) for name, stack in self._stacks.items()
                }
            self._totals.sampled += count
            keys, ages = self._items.keys_and_ages(slots)
            return Sample(
                keys=keys,
                probabilities=probabilities,
                ages=ages,
                columns={name: columns[name] for name in self.spec.fields},
                size=self._items.size,
                total_priority=self._sampler.total,
            )

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Set the `priorities` [n] of the items with `keys` uint64 [n]; return how many of the n were applied.

        Updates of items that no longer exist are skipped and counted. If a key occurs twice, its last priority is used.
        Raises ValueError, without a change, for priorities that are negative or not finite.
        """
        named = np.ascontiguousarray(keys, np.uint64).reshape(-1)
        numbers = checked_priorities(priorities, len(named))
        with self._lock:
            slots, found, applied = self._items.find(named, numbers)
            self._set_priorities(slots, found, applied)
            self._totals.stale_updates += len(named) - len(found)
            return len(found)

    def next_sequence(self, writer: str) -> int:
        """Return the sequence number of a writer's next insert."""
        with self._lock:
            return self._writers.get(writer).sequence + 1

    def remove_writer(self, writer: str) -> None:
        """Remove a writer. Its items stay, and so do the frames that they use. Its next insert has number 1."""
        with self._lock:
            slots = self._writers.remove(writer)
            if self._frames:
                self._frames.release(slots)

    @property
    def writers(self) -> list[str]:
        """The names of the known writers."""
        with self._lock:
            return self._writers.names

    def copy(self) -> TableCopy:
        """Begin a copy of the whole state. A table that restores it draws the same samples from then on."""
        with self._lock:
            slots = self._items.slots()
            keys = self._items.keys(slots)
            head: dict[str, npt.NDArray[np.generic]] = {
                "spec": np.frombuffer(self.spec.to_text().encode(), np.uint8),
                "random": generator_state(self._random),
                "totals": np.array(astuple(self._totals), np.int64),
                "numbered": np.array([self._items.total], np.int64),
                "free": self._items.free_slots(),
                "keys": keys,
                "priorities": self._priorities.get(slots),
                "weights": self._sampler.weights(slots),
                **self._writers.state(),
            }
            columns = self._columns | self._stacks
            return TableCopy(self._lock, self._items, keys, slots, columns, self._frames, head)

    def restore(self, head: State, pieces: Iterable[State]) -> None:
        """Replace the content with a copy's `head` and `pieces`; pieces may be read one by one.

        Items that are incomplete, or need an incomplete frame, are dropped. Raises ValueError if the copied table had
        another specification, or if something is missing or invalid; then the table is unusable.
        """
        found, wanted = head["spec"].tobytes().decode(), self.spec.to_text()
        if found != wanted:
            raise ValueError(
                f"the state belongs to another table: {found!r}, not {wanted!r}; start with an empty table"
            )
        arrays: dict[str, Column] = dict(head)
        with self._lock:
            self._clear()
            slots = (arrays["keys"] % np.uint64(self.spec.capacity)).astype(np.int64)
            checked_slots(np.append(arrays["free"], slots), self.spec.capacity, self.spec.capacity)
            frame_slots = checked_slots(arrays["frames/slots"], self._frames.capacity) if self._frames else NO_SLOTS
            self._fill(slots, frame_slots, pieces)
            lost = np.zeros(self.spec.frame_capacity + 1, np.bool_)
            if self._frames:
                lost[:-1] = True
                lost[frame_slots[arrays["frames/whole"]]] = False
            whole = arrays["items/whole"].copy()
            for stack in self._stacks.values():
                whole &= ~lost[stack[slots]].any(axis=1)
            self._items.restore(
                arrays["keys"][whole], np.append(arrays["free"], slots[~whole]), int(arrays["numbered"][0])
            )
            self._restore_priorities(
                slots[whole], arrays["keys"][whole], arrays["priorities"][whole], arrays["weights"][whole]
            )
            self._writers.restore(head, lost)
            self._retain_frames(slots[whole])
            self._totals = Totals(*(int(number) for number in arrays["totals"]))
            self._totals.removed += int(np.count_nonzero(~whole))
            self._random = generator_from_state(arrays["random"])

    def _fill(self, slots: Slots, frame_slots: Slots, pieces: Iterable[State]) -> None:
        """Store columns of the items in `slots` and frames in `frame_slots`. Raises ValueError if some are missing."""
        items = frames = 0
        for piece in pieces:
            if "frames" in piece:
                here = piece_range(piece["frames"], frames, len(frame_slots))
                assert self._frames is not None, "a table without frames has no slots for them"
                self._frames.fill(frame_slots[here], np.asarray(piece["pixels"], np.uint8))
                frames = here.stop
            else:
                here = piece_range(piece["items"], items, len(slots))
                for name, column in (self._columns | self._stacks).items():
                    column[slots[here]] = piece[f"columns/{name}"]
                items = here.stop
        if (items, frames) != (len(slots), len(frame_slots)):
            raise ValueError(f"the state has {items} of {len(slots)} items and {frames} of {len(frame_slots)} frames")
        for name, stack in self._stacks.items():
            if stack.min() < 0 or stack.max() > self.spec.frame_capacity:
                raise ValueError(f"{name!r} refers to frames outside the frame store")

    def _restore_priorities(self, slots: Slots, keys: Keys, priorities: Priorities, weights: Priorities) -> None:
        """Set the priorities and weights of restored items."""
        self._priorities.set(slots, checked_priorities(priorities, len(slots)))
        self._sampler.set_weights(slots, checked_priorities(weights, len(slots)))
        if self._evictor:
            self._evictor.set(keys, priorities)

    def _retain_frames(self, slots: Slots) -> None:
        """Retain the frames of the items in `slots` and of the writers, after the store was filled."""
        if self._frames:
            for stack in self._stacks.values():
                self._frames.retain(stack[slots])
            for writer in self._writers:
                self._frames.retain(checked_slots(writer.frames, self._frames.capacity).astype(np.int32))
            self._frames.rebuild_free()

    def _default_priority(self) -> float:
        return self._priorities.largest if self._items.size else _FIRST_PRIORITY

    def _check_frame_capacity(self, writer: Writer, count: int, first_frame: int) -> None:
        if self._frames:
            kept = self._writers.frames
            if not writer.is_continued_by(first_frame, count):
                kept -= len(writer.frames)
            if kept + count > self._frames.capacity:
                raise FrameStoreFull(
                    f"writers keep {kept} of {self._frames.capacity} frames, and {count} more exceed the capacity: "
                    "keep fewer by `keep_from`, remove inactive writers, or increase `frame_slots`"
                )

    def _store_frames(
        self, writer: Writer, new: Frames, first_frame: int, positions: Mapping[str, npt.NDArray[np.int64]]
    ) -> dict[str, FrameSlots]:
        """Store a writer's frames; return the frame slots int32 [B, H] of each stack, retained for new items."""
        if self._frames is None:
            return {}
        if not writer.is_continued_by(first_frame, len(new)):
            self._frames.release(writer.restart_frames(first_frame))
        while self._frames.free < len(new):
            self._remove(self._items.oldest(1))
        writer.frames = np.concatenate([writer.frames, self._frames.put(new)])
        slots = np.append(writer.frames, np.int32(self._frames.zeros))  # position -1 is the last entry
        stacks = {name: slots[position] for name, position in positions.items()}
        for stack in stacks.values():
            self._frames.retain(stack)
        return stacks

    def _evict_for(self, count: int) -> None:
        excess = self._items.size + count - self.spec.capacity
        if excess > 0:
            self._remove(self._chosen(excess))

    def _chosen(self, count: int) -> Slots:
        """Return the slots int64 [count] of the items to evict."""
        match self._evictor:
            case MinTree() as lowest:
                return lowest.pop(count)
            case InverseTree() as inverse:
                return inverse.pop(self._random.random(count))
        return self._items.oldest(count)

    def _remove(self, slots: Slots) -> None:
        if self._evictor:
            self._evictor.remove(self._items.keys(slots))
        self._items.remove(slots)
        self._sampler.remove(slots)
        self._priorities.set(slots, np.zeros(len(slots)))
        if self._frames:
            for stack in self._stacks.values():
                self._frames.release(stack[slots])
        self._totals.removed += len(slots)

    def _set_priorities(self, slots: Slots, keys: Keys, priorities: Priorities) -> None:
        least = self.spec.demonstration_priority
        if least:
            priorities = np.where(self._columns[DEMONSTRATION][slots], np.maximum(priorities, least), priorities)
        self._sampler.set(slots, priorities)
        self._priorities.set(slots, priorities)
        if self._evictor:
            self._evictor.set(keys, priorities)
