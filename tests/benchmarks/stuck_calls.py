#!/usr/bin/env python3
"""What calls without messages cost a worker that pushes by gRPC.

Pushes per second of a worker of a real parameter server, in windows without and with such calls, by turns, so that what
else the machine does falls on both. A call that the server ends is made again after 0.1 s. Prints a table; exit code 1
where a median ratio is below the bar.

    python tests/benchmarks/stuck_calls.py --parameters 677747
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from support.long_vector import configuration, fingerprint_of
from support.processes import Processes
from support.raw_grpc import CHECK, PUSH, Stuck

BAR = 0.85
CROWDS = (("Check", 8, 1), ("Check", 64, 1), ("Check", 1, 64), ("Push", 8, 1), ("Push", 1, 64))
METHODS = {"Check": CHECK, "Push": PUSH}


def main() -> int:
    parser = argparse.ArgumentParser(description="What calls without messages cost a worker that pushes.")
    parser.add_argument("--parameters", type=int, default=1_000, help="length of the vector (%(default)s)")
    parser.add_argument("--windows", type=int, default=5, help="of each kind (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window (%(default)s)")
    parser.add_argument("--crowd", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd:
        return crowd(*options.crowd)
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        found = measured(processes, Path(folder), options)
    print(f"{options.parameters:,} parameters; pushes/s, medians of {options.windows} windows")
    print(f"{'calls':<28}{'alone':>8}{'beside':>8}{'ratio':>8}")
    ratios = []
    for name, pairs in found.items():
        ratios.append(statistics.median(beside / alone for alone, beside in pairs))
        alone, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:<28}{alone:>8,.0f}{beside:>8,.0f}{ratios[-1]:>8.2f}")
    print(f"the bar is {BAR}")
    return int(min(ratios) < BAR)


def measured(processes: Processes, folder: Path, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """For each crowd pushes per second without and with it, window by window."""
    path = configuration(folder, options.parameters, "rms_prop")
    _, address = processes.start_server("relaax-parameter-server", "--config", path)
    bridge = ParameterClient(address)
    size = bridge.register(Registration(fingerprint_of(path))).parameters
    bridge.pull()
    gradient = np.random.default_rng(0).normal(scale=1e-3, size=size).astype(np.float32)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.windows):
        for method, calls, connections in CROWDS:
            alone = window(bridge, gradient, options.seconds)
            arguments = ("--crowd", address, METHODS[method], calls, connections)
            others = processes.start(sys.executable, __file__, *arguments)
            others.wait_for_line("there")
            beside = window(bridge, gradient, options.seconds)
            others.stop()
            name = f"{calls * connections} x {method}, {connections} connection{'s' * (connections > 1)}"
            found.setdefault(name, []).append((alone, beside))
    bridge.close()
    return found


def window(bridge: ParameterClient, gradient: np.ndarray, seconds: float) -> float:
    """Pushes per second."""
    count, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        bridge.push(gradient, 1)
        count += 1
    return count / passed


def crowd(address: str, method: str, calls: str, connections: str) -> int:
    """Calls without messages, until the process is stopped."""
    with Stuck(address, method, int(calls), int(connections), again=0.1):
        print("there", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
