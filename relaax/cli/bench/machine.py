"""The machine on which figures were measured, and whether it was idle."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from relaax import __version__
from relaax.cli.bench.emulator import cores
from relaax.metrics.system import MEGABYTE, available_memory, total_memory

BUSY_PERCENT = 10.0
PACKAGES = ("tensorflow", "grpcio", "numpy", "protobuf", "gymnasium", "ale-py")


def describe() -> dict[str, Any]:
    """Return hardware, versions and load. Takes a second, to measure the processor's load."""
    return {
        "cores": cores(),
        "processor": _processor(),
        "memory_mb": round(total_memory() / MEGABYTE),
        "memory_available_mb": round(available_memory() / MEGABYTE),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"relaax": __version__, **_versions()},
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "busy_percent": psutil.cpu_percent(interval=1.0),
    }


def warnings(machine: dict[str, Any]) -> list[str]:
    """Return a warning if the machine was not idle."""
    busy = machine["busy_percent"]
    if busy <= BUSY_PERCENT:
        return []
    return [
        f"the machine was not idle before the first measurement: {busy:.0f} % of its processor was in use (load "
        f"average {machine['load_average'][0]:g}); the figures reflect the remaining capacity"
    ]


def _processor() -> str:
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
