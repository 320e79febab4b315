#!/usr/bin/env python3
"""Inserts and samples per second of a replay server, by shared memory and by gRPC, compared with a local table.

The table is prioritized and full. Items are Atari transitions: two stacks of four frames 84 x 84, an action, a reward,
and whether the episode continued. An insert has 50 consecutive steps of one environment, and each frame once. A sample
is a batch of 32, after which the priorities of its items are updated. A learner requests the next batch while it uses
this one.

Measures a table in this process, one server by shared memory, and the same server by gRPC. With --peer, it also
measures the prioritized buffer of cpprb in a separate process (see peers/). Short windows alternate, so that other
load on the machine affects all. Client and server are separate processes on one host. Writes replay-service.csv.
Prints the medians of the rounds, and their ratios to the table and to cpprb.

    python tests/benchmarks/replay_service.py [--capacity 20000] [--rounds 9] [--peer]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from peer_runs import run
from peers.venvs import DEFAULT
from rows import Rows

from relaax.replay.client.client import ReplayClient
from relaax.replay.interfaces import Insertion, ReplayMemory
from relaax.replay.local import LocalReplay
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from support.processes import Processes
from support.replay_servers import start_replay_server, write_replay_configuration

BATCH = 32
ITEMS = 50
LENGTH = 4
SIDE = 84
EPISODE = 1000
NAME = "replay-service"
TABLE = "table"
PEER = "cpprb"
ROOT = Path(__file__).resolve().parents[2]


def declaration(name: str, capacity: int) -> TableDeclaration:
    """Return the declaration of a table of Atari transitions."""
    stack = Field("uint8", (SIDE, SIDE, LENGTH), LENGTH)
    fields = {"observation": stack, "following": stack, "action": Field("int64"), "reward": Field("float32")}
    fields["going_on"] = Field("bool")
    return TableDeclaration(TableSpec(name, fields, capacity, sampler="prioritized", frame=(SIDE, SIDE, 1)))


class Ours:
    """A replay memory of RELAAX, in this process or on a server, as an actor and a learner use it."""

    def __init__(self, name: str, actor: ReplayMemory, learner: ReplayMemory, batch: int = BATCH) -> None:
        """`batch`: number of transitions in a sample."""
        self.name = name
        self._batch = batch
        self._actor, self._learner = actor, learner
        self._writer = actor.writers[0]
        self._rng = np.random.default_rng(0)
        self._frames = self._rng.integers(0, 256, (ITEMS + LENGTH, SIDE, SIDE, 1), dtype=np.uint8)
        self._next = 0

    def insert(self) -> None:
        """Insert consecutive steps of one environment."""
        first = self._next
        steps = np.arange(first, first + ITEMS)[:, None] + np.arange(1 - LENGTH, 1)
        start = first - first % EPISODE
        columns: dict[str, Any] = {
            "observation": np.where(steps < start, -1, steps),
            "following": np.where(steps + 1 < start, -1, steps + 1),
            "action": np.zeros(ITEMS, np.int64),
            "reward": np.zeros(ITEMS, np.float32),
            "going_on": np.ones(ITEMS, np.bool_),
        }
        kept = max(0, first - LENGTH + 1)
        self._writer.insert(Insertion(columns, None, self._frames[: first + ITEMS + 1 - kept], kept))
        self._next += ITEMS

    def sample(self) -> None:
        """Sample a batch, and update the priorities of its items."""
        sample = self._learner.sample(self._batch, 60.0)
        assert sample is not None
        self._learner.update_priorities(sample, self._rng.random(self._batch))

    def close(self) -> None:
        self._learner.close()
        self._actor.close()


def rate(operation: Callable[[], None], items: int, seconds: float) -> float:
    """Repeat an operation for one window, and return its items per second."""
    started = time.perf_counter()
    for count in itertools.count(1):
        operation()
        passed = time.perf_counter() - started
        if passed >= seconds:
            return count * items / passed
    raise AssertionError


def table(rows: Rows, names: Sequence[str]) -> str:
    """Return the medians of the rounds, and of the ratios to the table and to the peer within a round."""
    bases = {f"of {name}'s": rows.rounds(name) for name in (TABLE, PEER) if name in names}
    kinds = {"inserts/s": "transitions inserted/s", "batches/s": f"batches of {BATCH} sampled/s"}
    text = "| | " + " | ".join(part for kind in kinds.values() for part in (kind, *bases)) + " |\n"
    text += "|---|" + "---:|" * len(kinds) * (1 + len(bases))
    for name in names:
        rounds, cells = rows.rounds(name), []
        for figure in kinds:
            cells.append(f"{statistics.median(one[figure] for one in rounds):,.0f}")
            for base in bases.values():
                ratios = (one[figure] / other[figure] for one, other in zip(rounds, base, strict=True))
                cells.append(f"{statistics.median(ratios):.2f}")
        text += f"\n| {name} | {' | '.join(cells)} |"
    return text


def peer(options: argparse.Namespace) -> dict[str, float]:
    """Measure a window of cpprb."""
    numbers = {"capacity": options.capacity, "items": ITEMS, "batch": BATCH, "seconds": options.seconds}
    arguments = [part for key, value in numbers.items() for part in (f"--{key}", str(value))]
    return run(PEER, "cpprb_buffer.py", arguments, options.venvs)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=20_000, help="transitions of each table (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window of one operation (%(default)g)")
    parser.add_argument("--peer", action="store_true", help="install cpprb and measure it too")
    parser.add_argument(
        "--venvs", type=Path, default=DEFAULT, help="folder of the peers' virtual environments (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    path = options.output / f"{NAME}.csv"
    path.unlink(missing_ok=True)
    rows = Rows(path)
    with ExitStack() as closing:
        processes = closing.enter_context(Processes(Path(closing.enter_context(TemporaryDirectory()))))
        names = (f"{kind}-{options.capacity}" for kind in ("table", "memory", "grpc"))
        of_table, of_memory, of_grpc = (declaration(name, options.capacity) for name in names)
        config = write_replay_configuration(Path(closing.enter_context(TemporaryDirectory())))
        gigabytes = 3 * of_table.spec.bytes() / 1e9
        _, address = start_replay_server(processes, config, "--memory", f"{gigabytes:.3f}")
        local = LocalReplay(of_table, 1)
        sides = [Ours(TABLE, local, local)]
        for name, declared, share in (("shared memory", of_memory, True), ("gRPC", of_grpc, False)):
            actor = ReplayClient([address], declared, actors=[0], share_memory=share)
            sides.append(Ours(name, actor, ReplayClient([address], declared, share_memory=share, ahead=True)))
        for side in sides:
            closing.callback(side.close)
            for _ in range(-(-options.capacity // ITEMS) + 1):
                side.insert()
            side.sample()
        for round_ in range(1, options.rounds + 1):
            for side in sides:
                figures = {
                    "inserts/s": rate(side.insert, ITEMS, options.seconds),
                    "batches/s": rate(side.sample, 1, options.seconds),
                }
                rows.add(side.name, 0, round_, figures)
            if options.peer:
                rows.add(PEER, 0, round_, peer(options))
    print(table(rows, [*(side.name for side in sides), *([PEER] if options.peer else [])]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
