"""What came out: numbers, what they mean, how they are shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

MEANING = {
    "emulator_only_steps_per_second": (
        "Steps per second of the same environments with the same preprocessing, actions drawn beforehand, all cores, "
        "no service and no client: what training cannot pass."
    ),
    "ale_vector_env_steps_per_second": (
        "The same of ale-py's AtariVectorEnv with all cores and nothing around it, for comparison."
    ),
    "training_steps_per_second": (
        "Steps per second of training through the service, with this configuration's settings, warm-up left out."
    ),
    "training_over_emulator": "The share of the environments' own speed that is left while training.",
    "act_latency_ms": (
        "From handing over an observation to having the action, as the client of one environment sees it; one "
        "connection, training, so that some actions wait for an update."
    ),
    "client_us_per_step": (
        "Processor time of the client per step, in an environment's program: the loop of relaax.client.run alone, with "
        "environments that take no time and a server that answers at once."
    ),
    "bridge": "How workers reach the parameter server in training: shared_memory or grpc, or what is configured.",
    "sync_ms": (
        "A worker's push of a gradient and pull of fresh parameters, in one call to the parameter server by gRPC. One "
        "worker has the server for itself: training has stopped."
    ),
    "shared_memory_ms": "The same push and pull through memory that worker and parameter server share.",
    "raw_grpc_ms": "As many bytes each way through a bare gRPC call that does nothing with them.",
    "sync_over_raw_grpc": "What the parameter server and the bridge add to the bare call, median by median.",
    "worker_memory_mb": "Memory that a worker shares with nobody (unique set size), when it has trained for a while.",
    "worker_start_s": "From connecting to the first action, the servers being up.",
}
UNITS = {"steps_per_second": "steps/s", "us_per_step": "us", "ms": "ms", "mb": "MB", "s": "s"}
SPREAD = 0.2
"""Windows of one measurement that lie further apart, as a share of their median, were measured on a busy machine."""


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` (0 to 1) of the values do not pass. Raises ValueError where there are none."""
    if not values:
        raise ValueError("there is no percentile of no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def p50_p99(values: Sequence[float]) -> dict[str, float | int]:
    """Median and 99th percentile, and of how many."""
    return {
        "p50": round(percentile(values, 0.5), 3),
        "p99": round(percentile(values, 0.99), 3),
        "count": len(values),
    }


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Window by window: what slows the machine for a while slows both."""
    return [round(a / b, 4) if b else math.nan for a, b in zip(of, to, strict=True)]


def median(values: Sequence[float], digits: int = 1) -> float:
    """The median, rounded."""
    return round(statistics.median(values), digits)


def unsteady(windows: Mapping[str, Sequence[float]]) -> list[str]:
    """A sentence for each measurement whose windows lie far apart."""
    return [
        f"the windows of {name} lie {(max(values) - min(values)) / statistics.median(values):.0%} apart: "
        "something else used the machine, or it changes its pace; measure again"
        for name, values in windows.items()
        if statistics.median(values) > 0 and max(values) - min(values) > SPREAD * statistics.median(values)
    ]


def shown(name: str, value: Any) -> str:
    """A figure in words."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        unit = "MB" if name.endswith("_mb") else "ms"
        parts = ("mean", "max") if "mean" in value else ("p50", "p99")
        text = ", ".join(f"{part} {_number(value[part])}" for part in parts)
        after = f" after {value['updates']:,} updates" if "updates" in value else ""
        return f"{text} {unit}{after}"
    unit = next((unit for ending, unit in UNITS.items() if name.endswith(f"_{ending}")), "")
    return f"{_number(value)} {unit}".strip()


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def table(figures: Mapping[str, Any], title: str) -> Table:
    """One row for each figure that was measured, with its meaning."""
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, leading=1)
    result.add_column("figure", no_wrap=True)
    result.add_column("measured", min_width=18, max_width=22)
    result.add_column("what it means")
    for name, meaning in MEANING.items():
        if name in figures:
            result.add_row(name, shown(name, figures[name]), meaning)
    return result
