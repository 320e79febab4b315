#!/usr/bin/env python3
"""The cost of a connection out of step on which no environment is idle.

Alternates connections of eight environments in step and out of step at the same server. They answer at once, with four
numbers each, and every hundredth step ends an episode. Prints the steps per second in step, and the median and range of
the ratios, by algorithm. The exit code is 1 if a median ratio is below `--bar`.

    python tests/benchmarks/out_of_step.py --rounds 10
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.client import Box, Discrete, VectorClient
from support.service import started_service

ENVIRONMENTS, STEPS = 8, 1024  # steps before the same outcomes come again
CASES: dict[str, dict[str, Any]] = {
    "da3c": {"path": "da3c"},
    "da3c, LSTM": {"path": "da3c", "lstm": True},
    "da3c, whole episodes": {"path": "da3c", "whole_episodes": True},
    "n_step_q": {"path": "n_step_q"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare connections out of step with connections in step.")
    parser.add_argument("--rounds", type=int, default=10, help="ratios of each algorithm (%(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each connection (%(default)s)")
    parser.add_argument("--bar", type=float, default=0.98, help="the lowest median ratio (%(default)s)")
    options = parser.parse_args()
    worst = float("inf")
    print("| algorithm | steps/s in step | out of step, relative to in step |\n|---|---|---|")
    for case, algorithm in CASES.items():
        ratios, paces = [], []
        with (
            tempfile.TemporaryDirectory() as folder,
            started_service(Path(folder), network={"dense": [64, 64]}, **algorithm) as service,
        ):
            for _ in range(options.rounds):
                before, out_of_step, after = (
                    pace(service.address, mode, options.seconds) for mode in (False, True, False)
                )
                paces.append((before + after) / 2)
                ratios.append(out_of_step / paces[-1])
        middle = statistics.median(ratios)
        worst = min(worst, middle)
        shown = f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {case} | {statistics.median(paces):,.0f} | {shown} |", flush=True)
    return int(worst < options.bar)


def pace(address: str, out_of_step: bool, seconds: float) -> float:
    """Return the environment steps per second of one connection."""
    rng = np.random.default_rng(1)
    seen = rng.uniform(-1, 1, (STEPS, ENVIRONMENTS, 4)).astype(np.float32)
    ends = rng.random((STEPS, ENVIRONMENTS)) < 0.01
    rewards, count = np.ones(ENVIRONMENTS), 0
    spaces: dict[str, Any] = {"observation_space": Box(-1, 1, (4,)), "action_space": Discrete(2)}
    with VectorClient(address, environments=ENVIRONMENTS, out_of_step=out_of_step, **spaces) as client:
        client.init(seen[0])
        for warm in range(200):
            client.step(rewards, seen[warm])
        began = time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            over = ends[count % STEPS]
            client.step(rewards, seen[count % STEPS], over if over.any() else None)
            count += 1
    return count * ENVIRONMENTS / spent


if __name__ == "__main__":
    sys.exit(main())
