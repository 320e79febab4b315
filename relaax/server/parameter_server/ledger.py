"""Remember the last push of each worker, so that none is counted twice."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """The last push number of each worker and its outcome. Not thread-safe: it is used under its shard's lock.

    Bounded: beyond `capacity` workers, the one that has not pushed for longest is forgotten.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._last: OrderedDict[str, tuple[int, Outcome]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def repeated(self, worker: str, push_id: int) -> Outcome | None:
        """Return the outcome of this push if it was counted before; None if it is the worker's next.

        Raises PushOutOfOrder if it is neither.
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
