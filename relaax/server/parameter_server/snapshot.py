"""The whole state of a shard at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relaax.optim.optimizers import Slots
from relaax.optim.vector import FlatVector
from relaax.parameters.moments import Moments
from relaax.server.parameter_server.counters import Counters
from relaax.server.parameter_server.target import TargetCopy

Statistics = Mapping[str, Moments]


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
