"""Plan, record and summary of a soak."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.soak_evidence import PROMISES
from support.soak_ledger import Account
from support.soak_watch import Saved


@dataclass(frozen=True)
class Plan:
    """The plan of a soak. `bound`: maximum seconds from the end of a storm until every client trains again."""

    faults: int = 200
    seed: int = 1
    shards: int = 2
    clients: int = 3
    target: float = 150.0
    storm: int = 16  # maximum number of faults that overlap
    stop_seconds: float = 17.0  # a process is stopped for this time or half of it
    bound: float = 180.0
    patience: float = 600.0  # timeout for the target, after the last fault
    short: bool = False
    s3: bool = True
    bridge: str = "auto"  # or "grpc", because wires have no effect on shared memory
    only: str = ""  # only kinds of faults whose names contain this text; empty: all kinds


@dataclass
class Struck:
    """A past fault. Times are of time.monotonic. `advanced`: time of the first rise of the global step after it."""

    kind: str
    leg: str
    begun: float
    ended: float = 0.0
    advanced: float | None = None


@dataclass
class Storm:
    """Faults that overlap. `calm`: seconds from the end of the last one until every client trains again."""

    faults: list[Struck] = field(default_factory=list)
    ended: float = 0.0
    calm: float | None = None


@dataclass
class Record:
    """The record of a soak. `returns`: seconds, global step and mean return after each storm."""

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
    tested: Counter[str] = field(default_factory=Counter)  # how often each promise was tested, by its name
    required: set[str] = field(default_factory=set)  # names of the promises that the plan had to test
    skipped: int = 0  # faults without a victim, each replaced by another
    unfinished: int = 0
    final_return: float = 0.0

    @property
    def faults(self) -> list[Struck]:
        """All faults in order."""
        return [fault for storm in self.storms for fault in storm.faults]


def summarize(plan: Plan, record: Record, account: Account, seconds: float) -> dict[str, Any]:
    """Return a summary that can be written as JSON."""
    faults = record.faults
    calm = [storm.calm for storm in record.storms if storm.calm is not None]
    return {
        "bridge": plan.bridge,
        "seed": plan.seed,
        "shards": plan.shards,
        "clients": plan.clients,
        "faults": len(faults),
        "drawn_in_vain": record.skipped,
        "storms": len(record.storms),
        "seconds": round(seconds, 1),
        "kinds": {kind: _of_kind(kind, faults) for kind in sorted({fault.kind for fault in faults})},
        "calm": _spread(calm),
        "promises": {promise.name: record.tested[promise.name] for promise in PROMISES},
        "required": sorted(record.required),
        "ways": dict(account.ways),
        "sent_again": account.sent_again,
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


def table(*summaries: dict[str, Any]) -> str:
    """Return Markdown tables with one column for each run: events, tested promises, counts of updates, faults."""
    heads = [f"{summary['bridge']}, seed {summary['seed']}" for summary in summaries]
    blocks = [
        _rows(["", *heads], [[name, *map(shown, summaries)] for name, shown in _SHOWN.items()]),
        _rows(["promise, tested", *heads], _promises(summaries)),
        _rows(
            ["shard", "run", "acknowledged", "undecided, applied", "rolled back", "in the last checkpoint"],
            [
                [str(shard), head, *(f"{summary[key][shard]:,}" for key in _ACCOUNT)]
                for summary, head in zip(summaries, heads, strict=True)
                for shard in range(summary["shards"])
            ],
        ),
        _rows(["fault: count, median s, max s", *heads], _kinds(summaries)),
    ]
    return "\n\n".join(blocks)


_ACCOUNT = ("acknowledged", "undecided_applied", "rolled_back", "kept")

_SHOWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "faults": lambda s: f"{s['faults']} in {s['storms']} storms",
    "minutes": lambda s: f"{s['seconds'] / 60:.1f}",
    "from a storm's end until every client trains": lambda s: (
        f"median {s['calm']['median']} s, at most {s['calm']['max']} s"
    ),
    "processes restarted": lambda s: str(sum(s["restarts"].values())),
    "workers": lambda s: str(s["workers"]),
    "pushes through memory, through gRPC": lambda s: f"{s['ways'].get('m', 0):,}, {s['ways'].get('g', 0):,}",
    "pushes sent again by workers": lambda s: f"{s['sent_again']:,}",
    "gradients": lambda s: ", ".join(f"{count:,} {outcome}" for outcome, count in s["outcomes"].items()),
    "pushes that were never answered": lambda s: str(s["undecided"]),
    "checkpoints": lambda s: ", ".join(f"{count} {leg}" for leg, count in s["checkpoints_published"].items()),
    "starts without a store": lambda s: str(s["starts_without_store"]),
    "values compared": lambda s: f"{s['values_compared']:,}",
    "differences": lambda s: str(len(s["violations"])),
    "mean return after the last fault": lambda s: f"{s['mean_return']:.0f} (target {s['target']:g})",
}


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _promises(summaries: Sequence[dict[str, Any]]) -> list[list[str]]:
    counted = lambda s, name: f"{s['promises'][name]}{'' if name in s['required'] else ' (not required)'}"  # noqa: E731
    return [[promise.what, *(counted(summary, promise.name) for summary in summaries)] for promise in PROMISES]


def _kinds(summaries: Sequence[dict[str, Any]]) -> list[list[str]]:
    def cell(found: dict[str, Any] | None) -> str:
        return "none" if found is None else f"{found['count']}, {found['median']}, {found['max']}"

    names = sorted({kind for summary in summaries for kind in summary["kinds"]})
    return [[name, *(cell(summary["kinds"].get(name)) for summary in summaries)] for name in names]


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
