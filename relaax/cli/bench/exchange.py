"""Time a worker's exchange with parameter or replay servers. This process must be their only client.

`python -m relaax.cli.bench.exchange parameters|replay SERVERS CONFIGURATION FINGERPRINT_FILE SECONDS OUTPUT`. The
output is JSON: `sync_ms` (push and pull by gRPC) and `shared_memory_ms` (empty if server and worker are on different
hosts); or `insert_ms` and `sample_ms` of each call, the number of items per call, and items per second of both.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relaax.algorithm_base import load_algorithm
from relaax.configuration import load_configuration
from relaax.configuration.roles import REPLAY_TOKEN, WORKERS_TOKEN
from relaax.hosting.fingerprint import parse_fingerprint
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from relaax.replay.client.client import ReplayClient
from relaax.replay.interfaces import Insertion
from relaax.replay.spec import TableDeclaration, TableSpec
from relaax.server.security.tokens import read_token
from relaax.transport.channel import Target

LONG_VECTOR = 5_000_000
"""Number of parameters above which 10 calls of each kind are timed instead of 100, because a call takes a second."""
ENV_STEPS = 1  # the value does not affect speed: it is only counted
ITEMS_PER_INSERT = 50
"""Number of items of an insert (Horgan et al. 2018)."""
DEFAULT_BATCH = 32
"""Number of items of a sample, if the algorithm's configuration has no batch size."""
TURN_SECONDS = 0.5
WARM_UP = 5
Calls = Mapping[str, Callable[[], Any]]


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the duration of a call in milliseconds."""
    before = time.perf_counter()
    call()
    return (time.perf_counter() - before) * 1e3


@contextlib.contextmanager
def push_calls(servers: str, fingerprint: str) -> Iterator[tuple[dict[str, Callable[[], Any]], int]]:
    """Yield calls that push a gradient and pull parameters, by figure, and the number of parameters."""
    targets = [Target(shard, read_token(None, "", WORKERS_TOKEN) or "") for shard in servers.split(",")]
    calls: dict[str, Callable[[], Any]] = {}
    with contextlib.ExitStack() as stack:
        for name, client in (
            ("sync_ms", ParameterClient(targets)),
            ("shared_memory_ms", ParameterClient(targets, transport="auto")),
        ):
            stack.callback(client.close)
            length = client.register(Registration(fingerprint)).parameters
            client.pull()
            gradient = np.random.default_rng(0).normal(scale=1e-3, size=length).astype(np.float32)
            if not calls or client.shares_memory:
                calls[name] = functools.partial(client.push, gradient, ENV_STEPS)
        yield calls, length


def time_alternately(calls: Calls, length: int, seconds: float) -> dict[str, list[float]]:
    """Call each of `calls` in turn for `seconds`, and return the durations in ms.

    At least 100 calls of each kind are timed, or 10 if the vector is longer than LONG_VECTOR.
    """
    warm_up, least = (2, 10) if length > LONG_VECTOR else (20, 100)
    times: dict[str, list[float]] = {name: [] for name in calls}
    rounds, ends = 0, time.monotonic() + seconds
    while rounds < warm_up + least or time.monotonic() < ends:
        rounds += 1
        for name, call in calls.items():
            times[name].append(milliseconds(call))
    return {name: taken[warm_up:] for name, taken in times.items()}


def insertions(spec: TableSpec, count: int) -> Iterator[Insertion]:
    """Yield insertions of `count` items of random numbers. Each item of stacked frames adds one new frame."""
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


def time_replay(targets: Sequence[Target], declaration: TableDeclaration, batch: int, seconds: float) -> dict[str, Any]:
    """Insert into replay servers and sample from them by turns; return the figures.

    The table is as declared, but without `samples_per_insert`, so that no call waits.
    """
    free = replace(declaration, samples_per_insert=None, min_size=1, error_buffer=None)
    count = min(ITEMS_PER_INSERT, free.spec.capacity)
    client = ReplayClient(targets, free, actors=range(len(targets)), session="relaax bench")
    streams = [insertions(free.spec, count) for _ in client.writers]  # each writer numbers its own frames
    inserted = 0

    def insert() -> None:
        nonlocal inserted
        client.writers[inserted % len(client.writers)].insert(next(streams[inserted % len(streams)]))
        inserted += 1

    def sample() -> None:
        assert client.sample(batch, 60.0) is not None

    calls = {"insert": (insert, count), "sample": (sample, batch)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    try:
        for call, _ in calls.values():
            for _ in range(WARM_UP * len(targets)):
                call()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for name, (call, _) in calls.items():
                turn = time.monotonic() + min(TURN_SECONDS, seconds / 2)
                while time.monotonic() < turn:
                    times[name].append(milliseconds(call))
    finally:
        client.close()
    found: dict[str, Any] = {"inserted_at_once": count, "sampled_at_once": batch}
    for name, (_, items) in calls.items():
        found[f"{name}_ms"] = times[name]
        found[f"{name}s_per_second"] = items * len(times[name]) / (sum(times[name]) / 1e3)
    return found


def main() -> None:
    """Measure, and write the result."""
    exchange, servers, file, fingerprint, seconds, output = sys.argv[1:]
    description = Path(fingerprint).read_text("utf-8")
    if exchange == "parameters":
        with push_calls(servers, description) as (calls, length):
            found: dict[str, Any] = {"shared_memory_ms": [], **time_alternately(calls, length, float(seconds))}
            found["parameters"] = length
    else:
        configuration = load_configuration(Path(file))
        algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
        config = algorithm.configure(configuration.algorithm)
        _, *spaces = parse_fingerprint(description)
        assert algorithm.Replay is not None
        declaration = algorithm.Replay(config, *spaces).table()
        token = read_token(None, "", REPLAY_TOKEN) or ""
        targets = [Target(server, token, service="replay server") for server in servers.split(",")]
        found = time_replay(targets, declaration, getattr(config, "batch_size", DEFAULT_BATCH), float(seconds))
    Path(output).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
