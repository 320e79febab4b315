"""Hold the numbers of replay tables for status pages and `relaax run`, without numba, which a table loads."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class TableTallies:
    """Numbers of one or more tables, with the fields of the message `TableStatus`, which describes them."""

    tables: int = 0
    size: int = 0
    capacity: int = 0
    bytes: int = 0
    inserts: int = 0
    samples: int = 0
    overruns: int = 0
    duplicates: int = 0
    stale_updates: int = 0
    mean_age: float = 0.0

    def __add__(self, other: TableTallies) -> TableTallies:
        """Return the numbers of both together; the mean age is that of their samples."""
        samples = self.samples + other.samples
        ages = self.samples * self.mean_age + other.samples * other.mean_age
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return TableTallies(**sums | {"mean_age": ages / samples if samples else 0.0})

    def past(self) -> TableTallies:
        """Return the counters of a table that was dropped; its sizes are zero."""
        return replace(self, tables=0, size=0, capacity=0, bytes=0)
