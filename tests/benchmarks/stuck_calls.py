#!/usr/bin/env python3
"""The cost of gRPC calls that send no message, for a worker that pushes by gRPC.

Measures the pushes per second of a worker at a real parameter server. Windows without and with such calls alternate, so
that other load on the machine affects both. A call that the server ends is repeated after 0.1 s. Prints a table. The
exit code is 1 if a median ratio is below the bar.

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
from support.raw_grpc import CHECK, PUSH, StuckCalls

BAR = 0.85
CROWDS = (("Check", 8, 1), ("Check", 64, 1), ("Check", 1, 64), ("Push", 8, 1), ("Push", 1, 64))
METHODS = {"Check": CHECK, "Push": PUSH}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="The cost of gRPC calls that send no message, for a worker that pushes."
    )
    parser.add_argument("--parameters", type=int, default=1_000, help="number of parameters (%(default)s)")
    parser.add_argument("--windows", type=int, default=5, help="windows of each kind (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window (%(default)s)")
    parser.add_argument("--crowd", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd:
        return crowd(*options.crowd)
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        found = measured(processes, Path(folder), options)
    print(f"{options.parameters:,} parameters; pushes/s, medians of {options.windows} windows")
    print(f"{'calls':<28}{'alone':>8}{'with':>8}{'ratio':>8}")
    ratios = []
    for name, pairs in found.items():
        ratios.append(statistics.median(beside / alone for alone, beside in pairs))
        alone, beside = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:<28}{alone:>8,.0f}{beside:>8,.0f}{ratios[-1]:>8.2f}")
    print(f"the bar is {BAR}")
    return int(min(ratios) < BAR)


def measured(processes: Processes, folder: Path, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Return, for each crowd, the pushes per second of each pair of windows without and with it."""
    path = configuration(folder, options.parameters, "rms_prop")
    _, address = processes.start_server("relaax-parameter-server", "--config", path)
    client = ParameterClient(address)
    size = client.register(Registration(fingerprint_of(path))).parameters
    client.pull()
    gradient = np.random.default_rng(0).normal(scale=1e-3, size=size).astype(np.float32)
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.windows):
        for method, calls, connections in CROWDS:
            alone = window(client, gradient, options.seconds)
            arguments = ("--crowd", address, METHODS[method], calls, connections)
            others = processes.start(sys.executable, __file__, *arguments)
            others.wait_for_line("ready")
            beside = window(client, gradient, options.seconds)
            others.stop()
            name = f"{calls * connections} x {method}, {connections} connection{'s' * (connections > 1)}"
            found.setdefault(name, []).append((alone, beside))
    client.close()
    return found


def window(client: ParameterClient, gradient: np.ndarray, seconds: float) -> float:
    """Return the pushes per second of one window."""
    count, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        client.push(gradient, 1)
        count += 1
    return count / passed


def crowd(address: str, method: str, calls: str, connections: str) -> int:
    """Keep calls without messages open until the process is stopped."""
    with StuckCalls(address, method, int(calls), int(connections), again=0.1):
        print("ready", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
