"""The parts of the GPU study. Each part measures on one device, and writes the figures of each case at once."""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from learner_alone import alone, fingerprint_of, learned
from relaax_runs import plan_of, training
from replay_service import ITEMS, Ours, declaration, rate
from rows import Rows

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.cli.bench.results import percentile
from relaax.cli.options import cores
from relaax.nn.devices import CPU, use_device, use_one_thread
from relaax.nn.engine import Outputs, make_engine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.replay.client.client import ReplayClient
from relaax.replay.spec import TableDeclaration
from support.processes import Processes
from support.replay_servers import start_replay_server, write_replay_configuration

BATCH, SHARDS = 512, 2
NATURE_KEYS = (
    "algorithm.network.convolutions=[{filters: 32, kernel: 8, stride: 4}, {filters: 64, kernel: 4, stride: 2}, "
    "{filters: 64, kernel: 3, stride: 1}]",
    "algorithm.network.dense=[512]",
)
ATARI = NetworkSpec(
    inputs=(84, 84, 4),
    heads={"policy": 18, "value": 1},
    dense=(256,),
    convolutions=(Convolution(16, 8, 4), Convolution(32, 4, 2)),
)
"""The network of da3c for Boxing."""
ACTED = (1, 8, 64, 256)
"""Environments of an action."""
ROLLOUTS = ((5, 8), (20, 8), (20, 32))
"""Steps and environments of a gradient."""
WARM_UP = 5
WORKERS = (1, 2, 4, 8, 16)
ACTORS, CLIENTS = 8, 2
"""Connections of one environment, and their client processes."""
INFERENCE = ("worker", "shared")
BOXING, PONG = "da3c_ale_boxing", "apex_ale"
ENVIRONMENTS = 8
"""Environments of each connection."""
CAPACITY = 50_000
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Study:
    """The settings of all parts.

    folder: that of the results. seconds: length of a window. capacity: transitions of each replay memory.
    """

    rows: Rows
    folder: Path
    seconds: float
    capacity: int = CAPACITY
    keys: Sequence[str] = ()

    def add(self, part: str, case: int, measure: Callable[[], dict[str, float]]) -> None:
        """Measure a case, unless it is in the file, and write its figures."""
        if self.rows.has(part, case, 1):
            return
        figures = measure()
        self.rows.add(part, case, 1, figures)
        print(f"{part} {case}: " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()), flush=True)


def replay(study: Study, part: str, device: str) -> None:
    """Measure inserts and samples of two replay servers at the same time, each as fast as possible."""
    study.add(part, BATCH, partial(replay_rates, study, max(1, min(8, cores() // 4))))


def replay_rates(study: Study, writers: int) -> dict[str, float]:
    """Return the rates of `writers` processes that insert, while this process samples and updates priorities."""
    declared = declaration("gpu", study.capacity)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="relaax-study-") as name, ExitStack() as closing:
        processes = closing.enter_context(Processes(Path(name)))
        config = write_replay_configuration(Path(name))
        memory = f"{2 * declared.spec.bytes() / 1e9:.3f}"
        started = [
            start_replay_server(processes, config, "--shard", f"{shard}/{SHARDS}", "--memory", memory)
            for shard in range(SHARDS)
        ]
        addresses = [address for _, address in started]
        client = ReplayClient(addresses, declared, actors=range(SHARDS), ahead=True)
        filler = Ours("fill", client, client, BATCH)
        closing.callback(filler.close)
        for _ in range(-(-study.capacity // ITEMS)):
            filler.insert()
        start, end = context.Event(), context.Event()
        inserted = [context.Value("q", 0) for _ in range(writers)]
        inserting = [
            context.Process(target=insert, args=(addresses, declared, SHARDS + i, start, end, count), daemon=True)
            for i, count in enumerate(inserted)
        ]
        for process in inserting:
            process.start()
            closing.callback(process.kill)
        deadline = time.monotonic() + WAIT_SECONDS
        start.set()
        while not all(count.value for count in inserted) and time.monotonic() < deadline:
            filler.sample()
        before, begun = sum(count.value for count in inserted), time.perf_counter()
        batches = rate(filler.sample, 1, study.seconds)
        passed = time.perf_counter() - begun
        transitions = (sum(count.value for count in inserted) - before) / passed
        end.set()
        for process in inserting:
            process.join(WAIT_SECONDS)
    return {"writers": writers, "transitions/s": transitions, "batches/s": batches}


def insert(
    addresses: Sequence[str], declared: TableDeclaration, actor: int, start: Any, end: Any, inserted: Any
) -> None:
    """Insert transitions as one actor until the event `end`, and count them in `inserted`."""
    client = ReplayClient(addresses, declared, actors=[actor])
    side = Ours("writer", client, client)
    start.wait(WAIT_SECONDS)
    while not end.is_set():
        side.insert()
        inserted.value += ITEMS
    side.close()


def latency(study: Study, part: str, device: str) -> None:
    """Measure the time of an action and of a gradient with the network of da3c."""
    use_one_thread()
    use_device(device)
    parameters = orthogonal_parameters(ATARI, 1, {"policy": 0.01, "value": 1.0})
    random = np.random.default_rng(0)

    def act(count: int) -> dict[str, float]:
        engine = make_engine(ATARI, np.uint8, (1, None))
        engine.set_parameters(parameters)
        inputs = random.integers(0, 256, (count, *ATARI.inputs), np.uint8)
        no_state = np.zeros((count, 0), np.float32)
        return times(lambda: engine.act(inputs, no_state), study.seconds)

    def gradient(steps: int, environments: int) -> dict[str, float]:
        engine = make_engine(ATARI, np.uint8, (steps, environments))
        engine.set_parameters(parameters)
        inputs = random.integers(0, 256, (steps, environments, *ATARI.inputs), np.uint8)
        no_state, no_restart = np.zeros((environments, 0), np.float32), np.zeros((steps, environments), np.bool_)
        return times(lambda: engine.gradient(inputs, no_state, no_restart, mean_of_outputs), study.seconds)

    for count in ACTED:
        study.add(f"{part} act", count, partial(act, count))
    for steps, environments in ROLLOUTS:
        study.add(f"{part} gradient", steps * environments, partial(gradient, steps, environments))


def mean_of_outputs(outputs: Outputs, part: slice) -> Outputs:
    """Return the derivatives of a loss: the sum of all outputs, divided by their number."""
    return {head: np.full_like(output, 1 / output.size) for head, output in outputs.items()}


def times(operation: Callable[[], Any], seconds: float) -> dict[str, float]:
    """Repeat an operation for a sixth of a window, and return median and 99th percentile in milliseconds."""
    for _ in range(WARM_UP):
        operation()
    taken: list[float] = []
    ends = time.perf_counter() + seconds / 6
    while len(taken) < WARM_UP or time.perf_counter() < ends:
        begun = time.perf_counter()
        operation()
        taken.append(1e3 * (time.perf_counter() - begun))
    return {"p50 ms": statistics.median(taken), "p99 ms": percentile(taken, 0.99)}


def learner(study: Study, part: str, device: str) -> None:
    """Measure a learner of apex with batches of 512 from two replay servers, then its gradient without the service."""
    folder = study.folder / f"gpu-{part.replace(' ', '-')}"

    def without_service() -> dict[str, float]:
        return {"updates/s": alone(folder, study.seconds)["updates_per_second"]}

    study.add(part, BATCH, partial(learner_rates, study, device, folder))
    study.add(f"{part} alone", BATCH, without_service)


def learner_rates(study: Study, device: str, folder: Path) -> dict[str, float]:
    """Return the rates of a learner. Write configuration and spaces to `folder`, as `alone` needs them."""
    keys = [
        f"relaax-learner.device={device}",
        f"relaax-replay-server.shards={SHARDS}",
        f"algorithm.batch_size={BATCH}",
        "algorithm.samples_per_insert=null",
        f"algorithm.replay_capacity={study.capacity}",
        f"algorithm.learning_starts={4 * BATCH}",
        f"run.clients={max(1, cores() // 4)}",
        *NATURE_KEYS,
        *study.keys,
    ]
    with tempfile.TemporaryDirectory(prefix="relaax-study-", ignore_cleanup_errors=True) as name:
        run = learned(PONG, keys, study.seconds, Path(name), WARM_UP)
        (folder / "run").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(name) / "run" / "configuration.yaml", folder / "run")
        (folder / "fingerprint.json").write_text(fingerprint_of(Path(name) / "run"), encoding="utf-8")
    return {"updates/s": run.updates, "waiting": run.waiting, "steps/s": run.steps}


def boxing(study: Study, part: str, device: str) -> None:
    """Measure training of da3c on Boxing with one client per core."""

    def measure() -> dict[str, float]:
        keys = [f"relaax-rlx-server.device={device}", *study.keys]
        window = training(plan_of(BOXING, cores(), ENVIRONMENTS, keys), study.seconds)
        return {"steps/s": window.steps_per_second, "gradients/s": window.pushes / window.seconds}

    study.add(part, cores(), measure)


def acting(study: Study, part: str, device: str) -> None:
    """Measure apex with workers that compute themselves, and with one inference process for all workers."""

    def measure(inference: str) -> dict[str, float]:
        keys = [
            f"relaax-rlx-server.device={device}",
            f"relaax-rlx-server.inference={inference}",
            f"relaax-learner.device={device}",
            "relaax-learner.learners=1",
            f"run.connections_per_client={ACTORS // CLIENTS}",
            "algorithm.samples_per_insert=null",
            f"algorithm.replay_capacity={study.capacity}",
            f"algorithm.learning_starts={BATCH}",
            *study.keys,
        ]
        window = training(plan_of(PONG, CLIENTS, 1, keys), study.seconds)
        return {"steps/s": window.steps_per_second, "act p50 ms": statistics.median(window.act_ms)}

    for inference in INFERENCE:
        study.add(f"{part} {inference}", ACTORS, partial(measure, inference))


def workers(study: Study, part: str, device: str) -> None:
    """Measure training of da3c on Boxing with 1 to 16 workers of one environment, up to the number of cores."""

    def measure(count: int) -> dict[str, float]:
        window = training(plan_of(BOXING, count, 1, study.keys), study.seconds)
        return {"steps/s": window.steps_per_second}

    for count in WORKERS:
        if count <= cores():
            study.add(part, count, partial(measure, count))


PARTS: dict[str, Callable[[Study, str, str], None]] = {
    "replay": replay,
    "learner": learner,
    "boxing": boxing,
    "acting": acting,
    "latency": latency,
    "workers": workers,
}


def run_part(study: Study, name: str) -> None:
    """Measure a part, such as `replay` or `latency gpu`."""
    part, _, device = name.partition(" ")
    PARTS[part](study, name, device or CPU)
