"""Fill replay servers and draw from them, by turns, in a separate process.

`python -m relaax.cli.bench.replay_load REPLAY_SERVERS CONFIGURATION FINGERPRINT_FILE SECONDS OUTPUT`. The output: JSON
with `insert_ms` and `sample_ms` of each call, how many items each had, and items per second of both.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relaax.algorithm_base import load_algorithm, parse_fingerprint
from relaax.cli.bench.sync import milliseconds
from relaax.configuration import load_configuration
from relaax.configuration.roles import REPLAY_TOKEN
from relaax.parameters.channel import Target
from relaax.replay.client import ReplayClient
from relaax.replay.declaration import TableDeclaration
from relaax.replay.interfaces import Insertion
from relaax.replay.spec import TableSpec
from relaax.server.security.tokens import read_token

AT_ONCE = 50
"""Items of an insert (Horgan et al. 2018)."""
BATCH = 32
"""Items of a sample, if the algorithm's configuration does not say."""
TURN_SECONDS = 0.5
WARM_UP = 5


def insertions(spec: TableSpec, count: int) -> Iterator[Insertion]:
    """Yield insertions of `count` items of random numbers. Each item of a stack brings one frame that is new."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        name: random.random((count, *field.shape)).astype(field.dtype) for name, field in spec.plain.items()
    }
    if spec.frame is None:
        while True:
            yield Insertion(columns, random.random(count))
    longest = max(field.frames for field in spec.stacked.values())
    frames = random.integers(0, 256, (count + longest - 1, *spec.frame), np.uint8)
    first = 0
    while True:
        for name, field in spec.stacked.items():
            columns[name] = first + np.arange(count)[:, None] + np.arange(field.frames)
        yield Insertion(dict(columns), random.random(count), frames, first)
        first += count


def load(targets: Sequence[Target], declaration: TableDeclaration, batch: int, seconds: float) -> dict[str, Any]:
    """Return the result. The table is as declared, except that nobody waits for anybody."""
    free = replace(declaration, samples_per_insert=None, min_size=1, error_buffer=None)
    count = min(AT_ONCE, free.spec.capacity)
    client = ReplayClient(targets, free, actors=range(len(targets)), session="relaax bench")
    streams = [insertions(free.spec, count) for _ in client.writers]  # each writer numbers its own frames
    inserted = 0

    def insert() -> None:
        nonlocal inserted
        client.writers[inserted % len(client.writers)].insert(next(streams[inserted % len(streams)]))
        inserted += 1

    def sample() -> None:
        assert client.sample(batch, 60.0) is not None

    try:
        for call in (insert, sample):
            for _ in range(WARM_UP * len(targets)):
                call()
        times: dict[Callable[[], None], list[float]] = {insert: [], sample: []}
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for call, taken in times.items():
                turn = time.monotonic() + min(TURN_SECONDS, seconds / 2)
                while time.monotonic() < turn:
                    taken.append(milliseconds(call))
    finally:
        client.close()
    return {
        "insert_ms": times[insert],
        "sample_ms": times[sample],
        "inserted_at_once": count,
        "sampled_at_once": batch,
        "inserts_per_second": count * len(times[insert]) / (sum(times[insert]) / 1e3),
        "samples_per_second": batch * len(times[sample]) / (sum(times[sample]) / 1e3),
    }


def main() -> None:
    """Load the replay servers, and write the result."""
    servers, file, fingerprint, seconds, output = sys.argv[1:]
    configuration = load_configuration(Path(file))
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    config = algorithm.configure(configuration.algorithm)
    _, *spaces = parse_fingerprint(Path(fingerprint).read_text("utf-8"))
    assert algorithm.Replay is not None
    declaration = algorithm.Replay(config, *spaces).table()
    token = read_token(None, "", REPLAY_TOKEN) or ""
    targets = [Target(server, token, service="replay server") for server in servers.split(",")]
    result = load(targets, declaration, getattr(config, "batch_size", BATCH), float(seconds))
    Path(output).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
