"""Statistics of replay tables, in a module that status pages can import without the tables."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Statistics of one or more tables. The message `TableStatus` describes the fields."""

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

    def __add__(self, other: TableStatistics) -> TableStatistics:
        """Return the sums; the mean age is weighted by samples."""
        samples = self.samples + other.samples
        ages = self.samples * self.mean_age + other.samples * other.mean_age
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return TableStatistics(**sums | {"mean_age": ages / samples if samples else 0.0})

    def of_dropped(self) -> TableStatistics:
        """Return the statistics of a dropped table: its counters remain, and its sizes are 0."""
        return replace(self, tables=0, size=0, capacity=0, bytes=0)
