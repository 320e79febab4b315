"""Keep replay memory in one process: tables of items, drawn uniformly or by priority, and a limiter of rates.

Each name is imported when it is first used: who needs the interfaces alone loads no compiled kernels.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaax.replay.errors import OutOfStep, SequenceGap, UnknownFrames
    from relaax.replay.limiter import RateLimiter
    from relaax.replay.spec import Field, TableSpec
    from relaax.replay.sum_tree import SumTree
    from relaax.replay.table import Inserted, Sample, Table, Totals

_MODULES = {
    "Field": "spec",
    "Inserted": "table",
    "OutOfStep": "errors",
    "RateLimiter": "limiter",
    "Sample": "table",
    "SequenceGap": "errors",
    "SumTree": "sum_tree",
    "Table": "table",
    "TableSpec": "spec",
    "Totals": "table",
    "UnknownFrames": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


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
