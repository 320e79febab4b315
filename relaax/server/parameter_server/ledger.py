"""Which push of each worker was counted last, so that none is counted twice."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Discard(enum.IntEnum):
    """Why a gradient was not applied. Values are those of the wire."""

    NONE = 0
    STALE = 1
    INCARNATION = 2
    NOT_FINITE = 3
    LOSS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a push. `staleness` is in versions."""

    discard: Discard
    staleness: int


class PushOutOfOrder(Exception):
    """A push number that is neither the next one nor the last one again."""


class Ledger:
    """The last push number of each worker and what became of it. Not thread-safe: it lives under its shard's lock.

    Bounded: beyond `capacity` workers, the one that has not pushed for longest is forgotten.
    """

    def __init__(self, capacity: int = 16_384) -> None:
        self._capacity = capacity
        self._last: OrderedDict[str, tuple[int, Outcome]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def repeated(self, worker: str, push_id: int) -> Outcome | None:
        """What became of this very push before; None if it is the worker's next.

        Raises PushOutOfOrder if it is neither.
        """
        last, outcome = self._last.get(worker, (0, None))
        if push_id == last and outcome is not None:
            return outcome
        if push_id != last + 1:
            raise PushOutOfOrder(f"push {push_id} after push {last}: the next one is {last + 1}")
        return None

    def has(self, worker: str, push_id: int) -> bool:
        """Whether this very push was the last that was counted."""
        return worker in self._last and self._last[worker][0] == push_id

    def record(self, worker: str, push_id: int, outcome: Outcome) -> None:
        """Remember what became of the worker's newest push."""
        self._last[worker] = (push_id, outcome)
        self._last.move_to_end(worker)
        if len(self._last) > self._capacity:
            self._last.popitem(last=False)

    def forget(self, worker: str) -> None:
        """The worker left: it will push no more."""
        self._last.pop(worker, None)

    def as_json(self) -> dict[str, list[int]]:
        """Worker to [push number, discard, staleness], the longest silent first."""
        return {
            worker: [push_id, int(outcome.discard), outcome.staleness]
            for worker, (push_id, outcome) in self._last.items()
        }

    def restore(self, entries: Mapping[str, Any]) -> None:
        """Take back what `as_json` gave."""
        self._last = OrderedDict(
            (worker, (int(push_id), Outcome(Discard(discard), int(staleness))))
            for worker, (push_id, discard, staleness) in entries.items()
        )
