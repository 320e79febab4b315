#!/usr/bin/env python3
"""The cost of a push and pull, by gRPC and by shared memory, compared with a bare gRPC call of the same size.

A real parameter server with a synthetic model, a bare gRPC server and a worker, each in its own process. The worker
alternates pushes, whose answers carry the parameters, with bare calls. Bare calls have the same channel options and the
same number of server threads. Their bytes are prepared in advance and not parsed. Prints a table of quartiles for each
repetition. The exit code is 1 if the median ratio of gRPC to a bare call exceeds its bar, or if that of gRPC to shared
memory is below its bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.cli.bench.results import percentile
from support.long_vector import configuration, fingerprint_of
from support.processes import Processes

BAR = 1.25
SHARED_MEMORY_BAR = 3.0
ATARI = 677_747
BARE = Path(__file__).with_name("bare_grpc.py")


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of a push and pull compared with a bare gRPC call.")
    parser.add_argument("--parameters", type=int, default=ATARI, help="number of parameters (%(default)s)")
    parser.add_argument("--optimizer", default="rms_prop", help="the model's optimizer (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a repetition (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="each with a new worker (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        found = [compared(processes, servers, options) for servers in started(processes, Path(folder), options)]
    print(f"{options.parameters:,} parameters, {options.optimizer}; ms: quartiles and the 99th percentile")
    print(f"{'':<4}{'by gRPC':<28}{'by shared memory':<28}{'bare gRPC':<28}gRPC / bare  gRPC / memory")
    ratios, gains = [], []
    for number, result in enumerate(found, 1):
        by_grpc, shared, bare = (result[key] for key in ("sync_ms", "shared_memory_ms", "raw_grpc_ms"))
        ratios.append(statistics.median(by_grpc) / statistics.median(bare))
        gains.append(statistics.median(by_grpc) / statistics.median(shared))
        table = "".join(f"{quartiles(times):<28}" for times in (by_grpc, shared, bare))
        print(f"{number:<4}{table}{ratios[-1]:<13.2f}{gains[-1]:.2f}")
    ratio, gain = statistics.median(ratios), statistics.median(gains)
    print(f"median ratios {ratio:.2f} and {gain:.2f}; the bars are at most {BAR} and at least {SHARED_MEMORY_BAR}")
    return int(ratio > BAR or gain < SHARED_MEMORY_BAR)


def started(processes: Processes, folder: Path, options: argparse.Namespace) -> list[tuple[str, str, Path, Path]]:
    """Start both servers. Return, for each repetition, their addresses and the worker's files."""
    path = configuration(folder, options.parameters, options.optimizer)
    (description := folder / "fingerprint.json").write_text(fingerprint_of(path))
    _, server = processes.start_server("relaax-parameter-server", "--config", path)
    raw_server = processes.start(sys.executable, BARE, "serve", options.parameters)
    raw = raw_server.wait_for_address()
    return [(server, raw, description, folder / f"{number}.json") for number in range(options.repetitions)]


def compared(processes: Processes, servers: tuple[str, str, Path, Path], options: argparse.Namespace) -> dict[str, Any]:
    """Run one repetition in a worker process, and return the result of `bare_grpc.compare`."""
    server, raw_server, description, output = servers
    arguments = [server, raw_server, description, options.seconds, output]
    worker = processes.start(sys.executable, BARE, "compare", *arguments)
    if worker.wait(options.seconds + 120.0):
        raise RuntimeError(worker.report())
    result: dict[str, Any] = json.loads(output.read_text("utf-8"))
    return result


def quartiles(values: list[float]) -> str:
    """Return the three quartiles and the 99th percentile as text."""
    return "  ".join(f"{percentile(values, share):.2f}" for share in (0.25, 0.5, 0.75, 0.99))


if __name__ == "__main__":
    sys.exit(main())
