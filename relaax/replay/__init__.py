"""Keep replay memory in one process: tables of items, drawn uniformly or by priority, and a limiter of rates."""

from relaax.replay.errors import OutOfStep, SequenceGap, UnknownFrames
from relaax.replay.limiter import RateLimiter
from relaax.replay.spec import Field, TableSpec
from relaax.replay.sum_tree import SumTree
from relaax.replay.table import Inserted, Sample, Table, Totals

__all__ = [
    "Field",
    "Inserted",
    "OutOfStep",
    "RateLimiter",
    "Sample",
    "SequenceGap",
    "SumTree",
    "Table",
    "TableSpec",
    "Totals",
    "UnknownFrames",
]
