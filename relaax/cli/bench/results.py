"""The figures of a benchmark, their meaning and their display."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.table import Table

from relaax import __version__
from relaax.cli.options import cores
from relaax.metrics.system import MEGABYTE, available_memory, total_memory

if TYPE_CHECKING:
    from relaax.cli.bench.service import ProcessorUse

MEANING = {
    "emulator_only_steps_per_second": (
        "Steps per second of the same environments with the same preprocessing, actions drawn beforehand, all cores, "
        "no service and no client: the upper bound for training."
    ),
    "training_steps_per_second": (
        "Steps per second of training through the service, with this configuration's settings, after a warm-up."
    ),
    "with_network_steps_per_second": (
        "Steps per second of the environments with the training's network, computed for the same batches in the same "
        "process: the upper bound for training with this network on this machine."
    ),
    "efficiency": "The fraction of this bound that training reaches.",
    "parts_us": (
        "Microseconds of one core for each step of training. Environments and network are measured without training; "
        "clients and workers take this much time in addition to them."
    ),
    "training_over_emulator": "The fraction of the environments' own speed that training reaches.",
    "act_latency_ms": (
        "Time from sending an observation to receiving the action, measured by a client with one environment. "
        "The connection trains, so some actions wait for an update."
    ),
    "bridge": "Transport between workers and parameter server: shared_memory, grpc, or the configured bridge.",
    "sync_ms": (
        "A worker's push of a gradient and pull of fresh parameters, in one call to the parameter server by gRPC. "
        "Training has stopped, so this worker is the only one."
    ),
    "shared_memory_ms": "The same push and pull through memory shared by worker and parameter server.",
    "replay_inserts_per_second": (
        "Items per second that one process inserts into the replay servers, 50 at once, as their only client. No "
        "call waits for samples_per_insert."
    ),
    "replay_insert_ms": "Duration of such an insert.",
    "replay_samples_per_second": (
        "Items per second that one process samples from them, in the algorithm's batches, in turns with inserts."
    ),
    "replay_sample_ms": "Duration of such a sample.",
    "worker_memory_mb": "Memory that a worker does not share (unique set size), after it has trained for a while.",
    "worker_start_s": "Time from connecting to the first action, with the servers running.",
}
UNITS = {
    "inserts_per_second": "items/s",
    "samples_per_second": "items/s",
    "steps_per_second": "steps/s",
    "ms": "ms",
    "mb": "MB",
    "s": "s",
}
SPREAD = 0.2
"""Windows of one measurement that differ by more than this fraction of their median indicate a busy machine."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by `share` (0 to 1) of the values. Raises ValueError if empty."""
    if not values:
        raise ValueError("cannot compute a percentile of 0 values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def p50_p99(values: Sequence[float]) -> dict[str, float | int]:
    """Return median, 99th percentile and number of values."""
    return {
        "p50": round(percentile(values, 0.5), 3),
        "p99": round(percentile(values, 0.99), 3),
        "count": len(values),
    }


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Return the ratio of each pair of windows: a temporary slowdown of the machine affects both."""
    return [round(a / b, 4) if b else math.nan for a, b in zip(of, to, strict=True)]


def median(values: Sequence[float], digits: int = 1) -> float:
    """Return the rounded median."""
    return round(statistics.median(values), digits)


def unsteady_windows(windows: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a warning for each measurement whose windows differ too much."""
    return [
        f"the windows of {name} differ by {(max(values) - min(values)) / statistics.median(values):.0%}: "
        "the machine had other load, or its speed varies; measure again"
        for name, values in windows.items()
        if statistics.median(values) > 0 and max(values) - min(values) > SPREAD * statistics.median(values)
    ]


def parts_us(windows: Mapping[str, Sequence[float]], trained: Sequence[ProcessorUse]) -> dict[str, float]:
    """Return the parts of a step of training, in microseconds of one core. `trained`: the windows of training.

    Environments and network are measured without training. They are subtracted from the time of clients and workers.
    """
    alone, both = (1e6 * cores() / statistics.median(windows[kind]) for kind in ("emulator_only", "with_network"))
    per_step = 1e6 / sum(use.steps for use in trained)
    user: defaultdict[str, float] = defaultdict(float)
    system = idle = 0.0
    for use in trained:
        idle += per_step * use.idle_seconds
        for kind, spent in use.by_kind.items():
            user[kind] += per_step * spent.user
            system += per_step * spent.system
    parts = {
        "environments": alone,
        "network": both - alone,
        "clients and workers": user["client"] + user["worker"] - both,
        "parameter server": user["parameter_server"],
        "operating system": system,
        "idle": idle,
    }
    return {name: round(us, 2) for name, us in parts.items()}


def format_figure(name: str, value: Any) -> str:
    """Return a figure as text."""
    if isinstance(value, str):
        return value
    if name == "parts_us":
        return "\n".join(f"{part} {_number(us)} µs" for part, us in value.items())
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
    """Return one row per measured figure, with its meaning."""
    result = Table(title=title, title_justify="left", box=SIMPLE_HEAD, leading=1)
    result.add_column("figure", no_wrap=True)
    result.add_column("measured", min_width=18, max_width=22)
    result.add_column("meaning")
    for name, meaning in MEANING.items():
        if name in figures:
            result.add_row(name, format_figure(name, figures[name]), meaning)
    return result


BUSY_PERCENT = 10.0
PACKAGES = ("tensorflow", "grpcio", "numpy", "protobuf", "gymnasium", "ale-py")


def describe_machine() -> dict[str, Any]:
    """Return hardware, versions and load. Takes a second, to measure the processor's load."""
    return {
        "cores": cores(),
        "processor": processor_name(),
        "memory_mb": round(total_memory() / MEGABYTE),
        "memory_available_mb": round(available_memory() / MEGABYTE),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"relaax": __version__, **_versions()},
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "busy_percent": psutil.cpu_percent(interval=1.0),
    }


def busy_machine(machine: Mapping[str, Any]) -> list[str]:
    """Return a warning if the machine was not idle."""
    busy = machine["busy_percent"]
    if busy <= BUSY_PERCENT:
        return []
    return [
        f"the machine was not idle before the first measurement: {busy:.0f} % of its processor was in use (load "
        f"average {machine['load_average'][0]:g}); the figures reflect the remaining capacity"
    ]


def processor_name() -> str:
    """Return the name of the processor, as the system shows it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
