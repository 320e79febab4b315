"""How training goes, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from relaax.server.parameter_server.checkpointing import Saved
from relaax.server.parameter_server.counters import Counters


@dataclass(frozen=True, slots=True)
class Status:
    """How training goes. `training_seconds` is counted from this process's first registration.

    `dropped_samples`: of statistics, which could not be merged, in this process's life.
    `checkpoint_error`: why the last attempt at a checkpoint failed, if it did.
    `act_ms`: median and 99th percentile of the time from a step to its answer, lately.
    """

    incarnation: int
    counters: Counters
    episodes: int
    mean_return_100: float | None
    best_mean_return_100: float | None
    workers: int
    mean_staleness: float
    checkpoint: Saved | None
    finished: bool
    max_global_step: int
    learning_rate: float
    training_seconds: float
    act_ms: tuple[float | None, float | None] = (None, None)
    staleness_p95: float = 0.0
    dropped_samples: int = 0
    checkpoint_error: str = ""
