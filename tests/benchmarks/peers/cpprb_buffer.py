#!/usr/bin/env python3
"""Inserts and samples per second of cpprb's prioritized buffer, with Atari transitions.

The Python of its virtual environment runs this script (see venvs.py). The buffer stores each frame of a stack once and
does not store the next observation separately (`stack_compress`, `next_of`), so that a transition takes as much memory
as in RELAAX. An insert has consecutive steps of one environment. A sample includes the update of its priorities. Writes
JSON to the standard output.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable

import numpy as np
from cpprb import PrioritizedReplayBuffer

LENGTH = 4
SIDE = 84


class Buffer:
    """A full prioritized buffer."""

    def __init__(self, capacity: int, items: int, batch: int) -> None:
        env_dict = {
            "obs": {"shape": (SIDE, SIDE, LENGTH), "dtype": np.uint8},
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "done": {"dtype": np.float32},
        }
        self._buffer = PrioritizedReplayBuffer(capacity, env_dict, next_of="obs", stack_compress="obs", alpha=0.6)
        self._rng = np.random.default_rng(0)
        frames = self._rng.integers(0, 256, (SIDE, SIDE, items + LENGTH), dtype=np.uint8)
        stacks = np.stack([frames[..., step : step + LENGTH] for step in range(items + 1)])
        self._batch = {"obs": stacks[:-1], "next_obs": stacks[1:]}
        self._batch |= {name: np.zeros(items, env_dict[name]["dtype"]) for name in ("act", "rew", "done")}
        self._count = batch
        for _ in range(-(-capacity // items) + 1):
            self.insert()

    def insert(self) -> None:
        """Insert consecutive steps of one environment."""
        self._buffer.add(**self._batch)

    def sample(self) -> None:
        """Sample a batch, and update the priorities of its items."""
        sample = self._buffer.sample(self._count, beta=0.4)
        self._buffer.update_priorities(sample["indexes"], self._rng.random(self._count))


def rate(operation: Callable[[], None], seconds: float) -> float:
    """Repeat an operation for one window, and return its calls per second."""
    operation()
    started = time.perf_counter()
    for count in itertools.count(1):
        operation()
        passed = time.perf_counter() - started
        if passed >= seconds:
            return count / passed
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=20_000, help="transitions (%(default)s)")
    parser.add_argument("--items", type=int, default=50, help="transitions of an insert (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="transitions of a sample (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window of one operation (%(default)s)")
    options = parser.parse_args()
    buffer = Buffer(options.capacity, options.items, options.batch)
    result = {
        "inserts/s": options.items * rate(buffer.insert, options.seconds),
        "batches/s": rate(buffer.sample, options.seconds),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
