#!/usr/bin/env python3
"""The cost of a push that returns a soft target network, compared with one that returns the parameters only.

Two real parameter servers with a synthetic model and Adam, one of them with a target network that each update renews.
This process alternates pushes to both, by gRPC or through shared memory, in random order. Prints the quartiles of each
kind of push, and the median ratio of each pair. The exit code is 1 if the ratio through shared memory exceeds its bar.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from push_and_pull import quartiles

from relaax.cli.bench.exchange import milliseconds, push_calls
from support.long_vector import configuration, fingerprint_of
from support.processes import Processes

BAR = 1.3
TAU = 0.005
WARM_UP = 20
NAMES = {"shared_memory_ms": "shared memory", "sync_ms": "gRPC"}


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of a push that returns parameters and target network.")
    parser.add_argument("--parameters", type=int, default=350_000, help="number of parameters (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each comparison (%(default)s)")
    options = parser.parse_args()
    print(f"{options.parameters:,} parameters, adam; ms: quartiles and the 99th percentile")
    ratios = {kind: compared(kind, options) for kind in NAMES}
    print(f"the bar of {NAMES['shared_memory_ms']} is at most {BAR}")
    return int(ratios["shared_memory_ms"] > BAR)


def compared(kind: str, options: argparse.Namespace) -> float:
    """Print a line, and return the median ratio of the two pushes of a pair."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = stack.enter_context(Processes(Path(folder)))
        calls = [started(Path(folder), processes, stack, kind, options.parameters, tau) for tau in (None, TAU)]
        pairs: list[list[float]] = []
        shuffled, ends = random.Random(0), time.monotonic() + options.seconds
        while len(pairs) < WARM_UP + 100 or time.monotonic() < ends:
            pairs.append([0.0, 0.0])
            for index in shuffled.sample((0, 1), 2):
                pairs[-1][index] = milliseconds(calls[index])
    plain, soft = map(list, zip(*pairs[WARM_UP:], strict=True))
    ratio = statistics.median(after / before for before, after in zip(plain, soft, strict=True))
    print(f"{NAMES[kind]:<15}parameters: {quartiles(plain):<28}with target: {quartiles(soft):<28}ratio {ratio:.2f}")
    return ratio


def started(
    folder: Path, processes: Processes, stack: contextlib.ExitStack, kind: str, parameters: int, tau: float | None
) -> Callable[[], Any]:
    """Start a server in a folder of its own. Return the call that pushes to it."""
    own = folder / f"tau-{tau}"
    own.mkdir()
    path = configuration(own, parameters, "adam", tau=tau)
    _, server = processes.start_server("relaax-parameter-server", "--config", path)
    calls, _ = stack.enter_context(push_calls(server, fingerprint_of(path)))
    push: Callable[[], Any] = calls[kind]
    assert (push().pulled.target is None) == (tau is None)
    return push


if __name__ == "__main__":
    sys.exit(main())
