"""What a soak is to do, what it did, and what came of it."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from support.soak_ledger import Account
from support.soak_watch import Saved

_SHOWN = (
    *("seconds", "calm", "incarnations", "workers", "restarts", "outcomes", "undecided", "checkpoints_published"),
    *(
        "checkpoints_late",
        "checkpoints_withdrawn",
        "starts_without_store",
        "unfinished_at_the_end",
        "values_compared",
        "target",
        "mean_return",
    ),
)


@dataclass(frozen=True)
class Plan:
    """What is to be done. `bound`: seconds from the end of a storm until every client trains again."""

    faults: int = 200
    seed: int = 1
    shards: int = 2
    clients: int = 3
    target: float = 150.0
    storm: int = 16  # faults that come together, at most
    stop_seconds: float = 30.0
    bound: float = 180.0
    patience: float = 600.0  # for the target, after the last fault
    short: bool = False
    s3: bool = True
    only: str = ""  # kinds of faults whose names have this in them; all by default


@dataclass
class Struck:
    """A fault that was. Times are of time.monotonic; `advanced`: when the global step was first seen to rise after."""

    kind: str
    leg: str
    begun: float
    ended: float = 0.0
    advanced: float | None = None


@dataclass
class Storm:
    """Faults that came together. `calm`: seconds from the end of the last one until every client trained."""

    faults: list[Struck] = field(default_factory=list)
    ended: float = 0.0
    calm: float | None = None


@dataclass
class Record:
    """What a soak did. `returns`: seconds, global step and mean return after each storm."""

    storms: list[Storm] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    returns: list[tuple[float, int, float]] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    published: dict[str, int] = field(default_factory=dict)
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    workers: int = 0
    starts_without_store: int = 0
    withdrawn: int = 0
    late: int = 0
    skipped: int = 0  # faults that found nobody to hit: another was drawn in their place
    unfinished: int = 0
    final_return: float = 0.0

    @property
    def faults(self) -> list[Struck]:
        """In their order."""
        return [fault for storm in self.storms for fault in storm.faults]


def summarize(plan: Plan, record: Record, account: Account, seconds: float) -> dict[str, Any]:
    """Everything that is worth keeping, as JSON can say it."""
    faults = record.faults
    calm = [storm.calm for storm in record.storms if storm.calm is not None]
    return {
        "seed": plan.seed,
        "shards": plan.shards,
        "clients": plan.clients,
        "faults": len(faults),
        "drawn_in_vain": record.skipped,
        "storms": len(record.storms),
        "seconds": round(seconds, 1),
        "kinds": {kind: _of_kind(kind, faults) for kind in sorted({fault.kind for fault in faults})},
        "calm": _spread(calm),
        "incarnations": len(account.incarnations),
        "workers": record.workers,
        "restarts": dict(record.restarts),
        "outcomes": dict(account.outcomes),
        "acknowledged": account.acknowledged,
        "undecided": account.undecided,
        "undecided_applied": account.undecided_applied,
        "rolled_back": account.rolled_back,
        "kept": account.kept,
        "values_compared": account.values_compared,
        "steps_uncertain": account.steps_uncertain,
        "violations": account.violations,
        "checkpoints_published": record.published,
        "checkpoints_late": record.late,
        "checkpoints_withdrawn": record.withdrawn,
        "starts_without_store": record.starts_without_store,
        "unfinished_at_the_end": record.unfinished,
        "exit_codes": record.codes,
        "target": plan.target,
        "mean_return": record.final_return,
        "returns": record.returns,
        "faults_in_order": [
            [fault.kind, fault.leg, round(fault.ended - fault.begun, 2), _recovery(fault)] for fault in faults
        ],
    }


def table(summary: dict[str, Any]) -> str:
    """The faults by kind, for people."""
    lines = [f"{'fault':28} {'count':>5} {'median s':>9} {'max s':>7}"]
    for kind, found in summary["kinds"].items():
        lines.append(f"{kind:28} {found['count']:5} {found['median'] or 0:9.1f} {found['max'] or 0:7.1f}")
    for shard, (acknowledged, applied, back, kept) in enumerate(
        zip(*(summary[k] for k in ("acknowledged", "undecided_applied", "rolled_back", "kept")), strict=True)
    ):
        lines.append(
            f"shard {shard}: {acknowledged:,} acknowledged + {applied} undecided - {back:,} rolled back = {kept:,}"
        )
    return "\n".join([*lines, *(f"{key}: {summary[key]}" for key in _SHOWN)])


def _of_kind(kind: str, faults: list[Struck]) -> dict[str, Any]:
    of_kind = [fault for fault in faults if fault.kind == kind]
    times = [recovery for fault in of_kind if (recovery := _recovery(fault)) is not None]
    return {"count": len(of_kind), **_spread(times)}


def _spread(times: list[float]) -> dict[str, float | None]:
    if not times:
        return {"median": None, "max": None}
    return {"median": round(statistics.median(times), 2), "max": round(max(times), 2)}


def _recovery(fault: Struck) -> float | None:
    return None if fault.advanced is None else round(fault.advanced - fault.ended, 2)
