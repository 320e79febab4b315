"""The processor time that each kind of process takes while it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

MICROSECONDS = 1e6


def processor_seconds(pids: Iterable[int | None], below: bool = False) -> float:
    """Return user and system seconds of these processes so far; those that have ended count nothing.

    `below`: with their descendants, such as environments in processes of their own.
    """
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in [process, *(process.children(recursive=True) if below else ())]:
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
    return total


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """What an interval of training took of the processor: seconds by kind of process.

    `steps`, `pushes`: what was trained on meanwhile; `seconds`: its length.
    """

    connections: int
    environments: int
    """Of each connection."""
    seconds: float
    steps: int
    pushes: int
    by_kind: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return microseconds of one core: of clients and workers a step, of servers and learners a push."""
        per = {"client": self.steps, "worker": self.steps}
        found = {
            kind: round(MICROSECONDS * seconds / count, 2)
            for kind, seconds in self.by_kind.items()
            if seconds > 0 and (count := per.get(kind, self.pushes)) > 0
        }
        return {
            "connections": self.connections,
            "environments": self.environments,
            "steps_per_second": round(self.steps / self.seconds, 1),
            "pushes_per_second": round(self.pushes / self.seconds, 2),
            "us": found,
        }


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return what each kind has taken in between; never below 0, for processes may have ended."""
    return {kind: max(0.0, after[kind] - before[kind]) for kind in after}
