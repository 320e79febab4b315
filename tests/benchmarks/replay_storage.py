#!/usr/bin/env python3
"""How many transitions a second the storage of replay memory takes in and gives out, in batches of 32.

Transitions of Atari: two stacks of four frames 84 x 84, an action, a reward, whether the episode went on; prioritized,
one thread, a full table. With the package cpprb beside it, by turns in short windows, so that what else the machine
does falls on both: its prioritized buffer, with the frames of a stack and of the next observation kept once there, too.

    python tests/benchmarks/replay_storage.py [--capacity 100000] [--seconds 20]
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from relaax.replay import Field, Table, TableSpec

BATCH = 32
LENGTH = 4
SIDE = 84
WINDOW = 0.5
"""Seconds of one operation before it is the next one's turn."""
EPISODE = 1000


class Ours:
    """A table of `relaax.replay`. Its writer sends each frame once."""

    name = "relaax"

    def __init__(self, capacity: int) -> None:
        stack = Field("uint8", (SIDE, SIDE, LENGTH), LENGTH)
        fields = {"observation": stack, "following": stack, "action": Field("int64"), "reward": Field("float32")}
        fields["going_on"] = Field("bool")
        spec = TableSpec("atari", fields, capacity, sampler="prioritized", frame=(SIDE, SIDE, 1))
        print(f"{self.name}: {spec.bytes() / 1e9:.2f} GB")
        self._table = Table(spec, seed=0)
        self._rng = np.random.default_rng(0)
        self._sequence = itertools.count(1)
        self._frames = self._rng.integers(0, 256, (BATCH + 1, SIDE, SIDE, 1), dtype=np.uint8)
        self._next = 0

    def insert(self) -> None:
        """Insert a batch: consecutive steps of one environment."""
        first = self._next
        steps = np.arange(first, first + BATCH)[:, None] + np.arange(1 - LENGTH, 1)
        start = first - first % EPISODE
        columns: dict[str, Any] = {
            "observation": np.where(steps < start, -1, steps),
            "following": np.where(steps + 1 < start, -1, steps + 1),
            "action": np.zeros(BATCH, np.int64),
            "reward": np.zeros(BATCH, np.float32),
            "going_on": np.ones(BATCH, np.bool_),
        }
        new, number = (self._frames, 0) if first == 0 else (self._frames[1:], first + 1)
        self._next += BATCH
        self._table.insert("worker", next(self._sequence), columns, None, new, number, self._next - LENGTH + 1)

    def sample(self) -> None:
        """Draw a batch, and give what was drawn new priorities."""
        sample = self._table.sample(BATCH)
        self._table.update_priorities(sample.keys, self._rng.random(BATCH))


class Theirs:
    """The prioritized buffer of cpprb."""

    name = "cpprb"

    def __init__(self, capacity: int) -> None:
        from cpprb import PrioritizedReplayBuffer

        env_dict = {
            "obs": {"shape": (SIDE, SIDE, LENGTH), "dtype": np.uint8},
            "act": {"dtype": np.int64},
            "rew": {"dtype": np.float32},
            "done": {"dtype": np.float32},
        }
        self._buffer = PrioritizedReplayBuffer(capacity, env_dict, next_of="obs", stack_compress="obs", alpha=0.6)
        self._rng = np.random.default_rng(0)
        frames = self._rng.integers(0, 256, (SIDE, SIDE, BATCH + LENGTH), dtype=np.uint8)
        stacks = np.stack([frames[..., step : step + LENGTH] for step in range(BATCH + 1)])
        self._batch = {"obs": stacks[:-1], "next_obs": stacks[1:]}
        self._batch |= {name: np.zeros(BATCH, env_dict[name]["dtype"]) for name in ("act", "rew", "done")}

    def insert(self) -> None:
        """Insert a batch: consecutive steps of one environment."""
        self._buffer.add(**self._batch)

    def sample(self) -> None:
        """Draw a batch, and give what was drawn new priorities."""
        sample = self._buffer.sample(BATCH, beta=0.4)
        self._buffer.update_priorities(sample["indexes"], self._rng.random(BATCH))


def rate(operation: Callable[[], None]) -> float:
    """Transitions a second in one window."""
    started = time.perf_counter()
    for count in itertools.count(1):
        operation()
        passed = time.perf_counter() - started
        if passed >= WINDOW:
            return count * BATCH / passed
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=100_000, help="transitions")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    arguments = parser.parse_args()
    stores: list[Ours | Theirs] = [Ours(arguments.capacity)]
    if importlib.util.find_spec("cpprb") is None:
        print("cpprb is not installed: there is nothing to compare with.")
    else:
        stores.append(Theirs(arguments.capacity))
    for store in stores:
        for _ in range(-(-arguments.capacity // BATCH) + 1):
            store.insert()
    operations = [(f"{store.name} {what}", getattr(store, what)) for store in stores for what in ("insert", "sample")]
    rates: dict[str, list[float]] = {name: [] for name, _ in operations}
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end:
        for name, operation in operations:
            rates[name].append(rate(operation))
    for name, found in rates.items():
        low, middle, high = statistics.quantiles(found, n=4) if len(found) > 1 else found * 3
        print(f"{name:15} {middle:9,.0f} transitions/s (quartiles {low:,.0f} to {high:,.0f}, {len(found)} windows)")


if __name__ == "__main__":
    main()
