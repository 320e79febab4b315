"""A soak of training with replay memory: processes die, answers are lost, and every update and item is counted."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil

from relaax.checkpoint import LocalStore
from relaax.replay import replay_pb2 as pb
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from support.processes import wait_until
from support.replay_soak_items import items_doubled, items_seen, items_sent
from support.run import Run, Runs, is_alive
from support.soak_journal import read_journal
from support.soak_ledger import Account, audit
from support.soak_watch import Archive

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "apex": (
        "CartPole-v1",
        {"target_interval": 100, "samples_per_insert": 8, "network": {"dense": [32], "activation": "relu"}},
    ),
    "sac": ("Pendulum-v1", {"samples_per_insert": 16, "random_steps": 400, "network": {"dense": [32]}}),
}
"""The environment of each algorithm, and its keys."""
SLOTS = 2048
COUNTS = {"parameter-server": 2, "replay-server": 2, "learner": 2, "worker": 2, "rlx-server": 1, "client": 2}
VICTIMS = ("replay-server", "learner", "worker", "parameter-server")
MORE_STEPS, MORE_UPDATES = 200, 20
STOP = "stop replay-server"
STOP_SECONDS = 8.0
"""Duration of a stop: exceeds a client's timeout, so that a server may execute a request after its client gave up."""
OLD_SECONDS = 21.0
"""Minimum age of a victim: a run fails if a process ends three times within 20 s of its start."""
MORE_MEMORY = 64.0
"""Maximum growth in megabytes of the largest server of a kind, from before the first fault to the end."""
THREADS = 60
"""Maximum number of threads of a server: the pool of gRPC and some others."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class ReplaySoakPlan:
    """The plan of a soak with replay memory.

    `kills`: number of kills of each kind of process. `stops`: how often a replay server is stopped for longer than the
    timeout of inserts. `bound`: seconds within which training must recover from a storm.

    The faults happen in a random order, about half of them in pairs. `storms` replaces them: the faults of each storm
    happen together. `algorithm`: a key of `TASKS`.
    """

    kills: int = 0
    stops: int = 0
    seed: int = 1
    bound: float = 240.0
    storms: tuple[tuple[str, ...], ...] = ()
    algorithm: str = "apex"


@dataclass
class ReplayAccount:
    """The result of a soak. `violations` are sentences; a correct run has an empty list."""

    ledger: Account
    items: list[str]
    faults: Counter[str]
    sent: int = 0
    seen: int = 0
    inserted: int = 0
    duplicates: int = 0
    calms: list[float] = field(default_factory=list)

    @property
    def violations(self) -> list[str]:
        return [*self.ledger.violations, *self.items]


def write_replay_soak_config(folder: Path, seed: int, algorithm: str) -> Path:
    """Write a configuration of the soak's algorithm, small enough for every process to be busy."""
    name, keys = TASKS[algorithm]
    for part in ("journals", "items"):
        (folder / part).mkdir()
    document = {
        "relaax-parameter-server": {"shards": COUNTS["parameter-server"]},
        "relaax-replay-server": {"shards": COUNTS["replay-server"], "memory": 0.1},
        "relaax-rlx-server": {"heartbeat": 1, "bridge": "grpc"},  # the soak loses answers to gRPC calls
        "relaax-learner": {"learners": COUNTS["learner"]},
        "relaax-run": {
            "environment": "OpenAI_Gym",
            "name": name,
            "clients": COUNTS["client"],
            "envs-per-client": 4,
            "checkpoint-interval": 3,
        },
        "algorithm": {
            "path": str(Path(__file__).with_name(f"replay_soak_{algorithm}.py")),
            "journals": str(folder / "journals"),
            "items": str(folder / "items"),
            "segments": COUNTS["parameter-server"],
            "slots": SLOTS,
            "seed": seed,
            "max_global_step": 10**9,
            "max_staleness": 6,
            "initial_learning_rate": 1e-4,
            "replay_capacity": 20_000,
            "learning_starts": 400,
            "batch_size": 32,
            "actor_interval": 5,
            **keys,
        },
    }
    path = folder / "replay_soak.yaml"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")  # JSON is YAML
    return path


class Inserted:
    """A thread that polls the replay servers for the number of inserted items, and sums it over their restarts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.duplicates = 0
        """Maximum number of repeated inserts that one server has reported."""
        self._lives: list[list[int]] = [[0] for _ in range(COUNTS["replay-server"])]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> int:
        """Stop polling, and return a lower bound of the number of inserted items."""
        self._stop.set()
        self._thread.join()
        return sum(map(sum, self._lives))

    def samples(self) -> list[int]:
        """Return the number of samples of each server since its start. Raises grpc.RpcError if one is unavailable."""
        return [sum(table.samples for table in self._ask(shard)) for shard in range(len(self._lives))]

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for shard, lives in enumerate(self._lives):
                with contextlib.suppress(grpc.RpcError):
                    tables = self._ask(shard)
                    self.duplicates = max(self.duplicates, sum(table.duplicates for table in tables))
                    inserts = sum(table.inserts for table in tables)
                    if inserts < lives[-1]:  # the server restarted with empty tables
                        lives.append(0)
                    lives[-1] = inserts

    def _ask(self, shard: int) -> Any:
        name = f"replay-server-{shard}" if shard else "replay-server"
        with grpc.insecure_channel(self._run.address_of(name)) as channel:
            return ReplayServiceStub(channel).GetStatus(pb.ReplayServiceGetStatusRequest(), timeout=2).tables


class ReplaySoak:
    """One `relaax run` whose processes are killed at seeded random times."""

    def __init__(self, plan: ReplaySoakPlan, runs: Runs, folder: Path, report: Report = print) -> None:
        self._plan = plan
        self._folder = folder
        self._report = report
        self._random = random.Random(plan.seed)
        self._run = runs.start("--no-progress", config=write_replay_soak_config(folder, plan.seed, plan.algorithm))
        self._archive = Archive(LocalStore(self._run.directory / "checkpoints"), SLOTS)
        self._inserted = Inserted(self._run)
        self._faults: Counter[str] = Counter()
        self._calms: list[float] = []

    def run(self) -> ReplayAccount:
        """Run the storms, end the run, and return the account. Raises AssertionError."""
        try:
            self._expect_calm("the start")
            before = self._memory()
            for storm in self._plan.storms or self._storms():
                self._strike(storm)
                self._faults.update(storm)
                self._expect_calm(" and ".join(storm))
            self._expect_bounds(before)
            inserted = self._end()
        finally:
            self._inserted.close()
            self._archive.close()
        return self._account(inserted)

    def _storms(self) -> Iterator[Sequence[str]]:
        """Yield all planned faults in a random order, one or two at a time."""
        cards = [part for part in VICTIMS for _ in range(self._plan.kills)] + [STOP] * self._plan.stops
        self._random.shuffle(cards)
        rest = iter(cards)
        while storm := list(itertools.islice(rest, self._random.choice((1, 1, 2)))):
            yield storm

    def _strike(self, storm: Sequence[str]) -> None:
        """Kill processes of these kinds within a fraction of a second, while a replay server may be stopped."""
        killed = Counter(fault for fault in storm if fault != STOP)
        for part, count in killed.items():
            what = f"there are {count} of {part} to kill"
            wait_until(lambda p=part, n=count: len(self._old(p)) >= n, what, self._plan.bound)  # type: ignore[misc]
        time.sleep(self._random.uniform(0, 2))
        victims = [v for part, count in killed.items() for v in self._random.sample(self._old(part), count)]
        stopped = self._random.sample(self._run.of("replay-server"), storm.count(STOP))
        self._random.shuffle(victims)
        for process in stopped:
            process.suspend()
        try:
            for victim in victims:
                victim.send_signal(signal.SIGKILL)
                time.sleep(self._random.choice((0.0, self._random.uniform(0, 0.5))))
            for victim in victims:
                wait_until(lambda v=victim: not is_alive(v), f"{victim} is dead")  # type: ignore[misc]
            if stopped:
                time.sleep(STOP_SECONDS)  # as on a machine that swaps
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def _old(self, part: str) -> list[psutil.Process]:
        found = sorted(self._run.of(part), key=lambda process: process.pid)
        return [process for process in found if part == "worker" or time.time() - process.create_time() > OLD_SECONDS]

    def _expect_calm(self, after: str) -> None:
        """Check that all processes run, global step and updates rise, and every replay shard is sampled again."""
        begun = time.monotonic()
        bound = self._plan.bound
        for part, count in COUNTS.items():
            wait_until(lambda p=part, n=count: len(self._run.of(p)) == n, f"{count} of {part} after {after}", bound)  # type: ignore[misc]
        first = self._run.wait_for(lambda status: True, f"an answer after {after}", bound)
        drawn = wait_until(self._drawn, f"all replay servers answer after {after}", bound)

        def rises(status: Any) -> bool:
            nonlocal first
            if status.incarnation != first.incarnation:
                first = status
            steps, updates = status.global_step - first.global_step, status.updates - first.updates
            registered = status.workers == COUNTS["worker"] and status.learners == COUNTS["learner"]
            return registered and steps > MORE_STEPS and updates > MORE_UPDATES

        self._run.wait_for(rises, f"steps and updates rise after {after}", bound)

        def all_drawn() -> bool:
            return all(now > then for now, then in zip(self._drawn() or drawn, drawn, strict=True))

        wait_until(
            all_drawn, f"every replay server is sampled after {after}; samples before: {drawn}", bound, interval=0.2
        )
        self._calms.append(time.monotonic() - begun)
        status = self._run.status
        self._report(
            f"{after}: recovered after {self._calms[-1]:.1f} s, step {status.global_step}, update {status.updates}"
        )

    def _drawn(self) -> list[int] | None:
        with contextlib.suppress(grpc.RpcError):
            return self._inserted.samples()
        return None

    def _memory(self) -> dict[str, float]:
        """Return the unique memory of the largest process of each kind, in megabytes."""
        parts = ("parameter-server", "replay-server", "learner", "rlx-server")
        return {part: max(p.memory_full_info().uss for p in self._run.of(part)) / 2**20 for part in parts}

    def _expect_bounds(self, before: dict[str, float]) -> None:
        after = self._memory()
        grown = {part: after[part] - before[part] for part in before if after[part] > before[part] + MORE_MEMORY}
        assert not grown, f"memory grew by {grown} megabytes from {before}"
        threads = {part: max(p.num_threads() for p in self._run.of(part)) for part in before}
        assert max(threads.values()) < THREADS, threads

    def _end(self) -> int:
        """Interrupt the run, check that all processes end, and return a lower bound of the inserted items."""
        inserted = self._inserted.close()
        running = self._run.running
        running.send_signal(signal.SIGINT)
        assert running.wait(180) == 130, running.report()
        self._run.expect_nothing_left()
        for path in sorted((self._run.directory / "logs").iterdir()):
            text = path.read_text(errors="replace")
            assert "Traceback" not in text, f"{path.name}: {text[text.index('Traceback') - 1000 :][:6000]}"
            if path.name.startswith("learner"):
                last = text[text.rindex("starts to learn at global step") :]
                assert "learner ends because of SIGTERM" in last, f"{path}: {text[-3000:]}"
        return inserted

    def _account(self, inserted: int) -> ReplayAccount:
        lives = [read_journal(path) for path in sorted((self._folder / "journals").iterdir())]
        saved = sorted(self._archive.saved.values(), key=lambda s: s.order)
        assert not self._archive.damaged, self._archive.damaged
        items = self._folder / "items"
        account = ReplayAccount(audit(lives, saved, COUNTS["parameter-server"]), items_doubled(items), self._faults)
        account.sent, account.seen, account.inserted = items_sent(items), items_seen(items), inserted
        account.duplicates, account.calms = self._inserted.duplicates, self._calms
        if inserted > account.sent:
            account.items.append(f"{inserted} items were inserted, but only {account.sent} were sent")
        return account
