"""Start the service as `relaax run` does, and measure it through its ports."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.cli.bench.programs import START_SECONDS, Programs, Spent, processor_times, terminate
from relaax.cli.run.plan import Plan, run_tokens
from relaax.cli.run.progress import Progress, ProgressReader
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.supervisor import Supervisor
from relaax.configuration.roles import CLIENT, LEARNER, PARAMETER_SERVER, REPLAY_SERVER
from relaax.metrics.system import MEGABYTE
from relaax.supervision.process import Process, StartError

WARM_UP_SECONDS = 2.0
WARM_UP_UPDATES = 10
WORKER_END_SECONDS = 10.0
EXCHANGE_SECONDS = 60.0
"""Maximum seconds of an exchange's process in addition to the measured time."""
_WARNING = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
MIN_ACTIONS = 500
"""Minimum number of actions for a meaningful 99th percentile."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Unique set sizes of the workers in megabytes, and their mean number of updates."""

    megabytes: tuple[float, ...]
    updates: int

    def as_json(self) -> dict[str, Any]:
        """Return mean and maximum."""
        sizes = self.megabytes
        return {
            "mean": round(statistics.fmean(sizes), 1) if sizes else None,
            "max": round(max(sizes), 1) if sizes else None,
            "workers": len(sizes),
            "updates": self.updates,
        }


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """Processor seconds of an interval of training, by kind of process.

    `environments`: per connection. `steps`, `pushes`: in the interval. `seconds`: length of the interval.
    """

    connections: int
    environments: int
    seconds: float
    steps: int
    pushes: int
    by_kind: Mapping[str, Spent]
    idle_seconds: float
    """Seconds in which cores of the machine were idle, added over all cores."""

    def as_json(self) -> dict[str, Any]:
        """Return microseconds of one core: per step for clients and workers, per push for servers and learners."""
        per = {"client": self.steps, "worker": self.steps}
        found = {
            kind: round(1e6 * seconds / count, 2)
            for kind, spent in self.by_kind.items()
            if (seconds := sum(spent)) > 0 and (count := per.get(kind, self.pushes)) > 0
        }
        return {
            "connections": self.connections,
            "environments": self.environments,
            "steps_per_second": round(self.steps / self.seconds, 1),
            "pushes_per_second": round(self.pushes / self.seconds, 2),
            "us": found,
        }


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of training. `pushes`: received gradients; `discarded`: gradients that were not applied.

    Measured by clients: `of_connections`, steps per second of each connection; `act_ms`, latency of each action.
    """

    steps_per_second: float
    seconds: float
    pushes: int
    discarded: int
    memory: Memory | None
    of_connections: tuple[float, ...]
    act_ms: tuple[float, ...]
    processor: ProcessorUse


class MeasuredService:
    """A parameter server and an RLX server without clients, running until the end of the block."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._directory = RunDirectory(folder / "run")
        self._directory.open(fresh=False, max_steps=plan.max_steps)
        self._directory.write_configuration(plan)
        self._tokens = run_tokens(plan)
        self._supervisor = Supervisor(plan, self._directory, self._tokens)
        self._reader = ProgressReader(self._tokens.status)

    def __enter__(self) -> MeasuredService:
        try:
            self._supervisor.start_servers()
            self._without_clients = self._descendants()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                self.stop()
        finally:
            self._close()

    def _close(self) -> None:
        self._supervisor.kill()
        self._reader.close()
        self._directory.close()

    @property
    def configuration(self) -> Path:
        """File of the effective configuration."""
        return self._directory.configuration

    @property
    def learns_separately(self) -> bool:
        """Whether learners are processes of their own, or use a replay memory in the workers."""
        return bool(self._supervisor.replay_addresses)

    def stop(self) -> None:
        """Stop the servers in order; the last checkpoint is written."""
        self._supervisor.stop_training()
        self._supervisor.stop_parameter_server()

    def exchange(self, seconds: float) -> dict[str, Any]:
        """Return the times of a worker's exchange with the parameter server, after `stop`. Raises StartError."""
        self._supervisor.start_parameter_server()
        secrets = self._tokens.of(PARAMETER_SERVER)
        return self._run_exchange("parameters", self._supervisor.shard_addresses, secrets, seconds)

    def replay_exchange(self, seconds: float) -> dict[str, Any] | None:
        """Return the times of an exchange with replay servers; None if the run has none. Raises StartError."""
        self._supervisor.start_replay_servers()
        servers = self._supervisor.replay_addresses
        return (
            self._run_exchange("replay", ",".join(servers), self._tokens.of(REPLAY_SERVER), seconds)
            if servers
            else None
        )

    def _run_exchange(self, kind: str, servers: str, secrets: Mapping[str, str], seconds: float) -> dict[str, Any]:
        manager = CheckpointManager(LocalStore(self._directory.checkpoints))
        description = manager.manifest(manager.published()[0])["fingerprint"]
        fingerprint, output = self._folder / "fingerprint.json", self._folder / f"{kind}.json"
        fingerprint.write_text(json.dumps(description, sort_keys=True, separators=(",", ":")), encoding="utf-8")
        process = Process(f"{kind}-exchange", self._folder / f"{kind}.log", secrets=secrets)
        arguments = [kind, servers, str(self._directory.configuration), str(fingerprint), str(seconds), str(output)]
        try:
            process.start([sys.executable, "-m", "relaax.cli.bench.exchange", *arguments])
            if not process.wait(seconds + EXCHANGE_SECONDS):
                raise StartError(
                    f"{process.name} has not finished within {seconds + EXCHANGE_SECONDS:g} s:\n{process.log_tail()}"
                )
            if process.exit_code() != 0:
                raise StartError(f"{process.name} failed with exit code {process.exit_code()}:\n{process.log_tail()}")
        finally:
            terminate(process)
        result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return result

    def window(self, seconds: float, updates: int = 0, bound: float = 0.0) -> Window:
        """Measure the speed of training after a warm-up, by the parameter server's step count.

        With `updates`, training continues until each worker has made this many updates, for at most `bound` seconds.
        The result then includes the workers' memory. Raises StartError.
        """
        run = self._plan.run
        address = self._supervisor.rlx_server.address or ""
        commands = [self._plan.client_command(address, i) for i in range(run.clients)]
        return self._window(commands, run.connections_per_client, run.envs_per_client, seconds, updates, bound)

    def crowd(self, connections: int, seconds: float, rate: float | None = None) -> Window:
        """Measure training with `connections` programs, each with one connection of one environment.

        `rate`: maximum steps per second of each. Raises StartError.
        """
        options = [] if rate is None else ["--rate", f"{rate:g}"]
        address = self._supervisor.rlx_server.address or ""
        commands = [[*self._plan.environment_command(address, 1, i), *options] for i in range(connections)]
        return self._window(commands, 1, 1, seconds, 0, 0.0)

    def _window(
        self,
        commands: Sequence[Sequence[str]],
        connections: int,
        environments: int,
        seconds: float,
        updates: int,
        bound: float,
    ) -> Window:
        """Measure training by `commands`. `connections`: per command; `environments`: per connection."""
        workers = len(commands) * connections
        before = self._progress()
        with Programs("client", commands, self._folder / "clients", self._tokens.of(CLIENT), connections) as programs:
            self._warm_up(programs, before, workers, seconds)
            seen = [len(measured.act_ms) for measured in programs.measured]
            use, begin, discarded = self._interval(programs, workers, environments, seconds)
            of_connections = [one.steps_per_second(begin, begin + use.seconds) for one in programs.measured]
            act_ms = tuple(ms for count, one in zip(seen, programs.measured, strict=True) for ms in one.act_ms[count:])
            memory = None
            if updates:
                programs.wait_until(lambda: self._updates(before, workers) >= updates, time.monotonic() + bound)
                memory = Memory(self._worker_megabytes(), self._updates(before, workers))
        self._wait_for_workers_to_end()
        speed = use.steps / use.seconds
        return Window(speed, use.seconds, use.pushes, discarded, memory, tuple(of_connections), act_ms, use)

    def _interval(
        self, programs: Programs, connections: int, environments: int, seconds: float
    ) -> tuple[ProcessorUse, float, int]:
        """Measure an interval of training; return its processor use, its start, and the number of discarded pushes."""
        before, first = self._processor(programs), self._progress()
        idle, begin = psutil.cpu_times().idle, time.monotonic()
        programs.wait(seconds)
        last, length = self._progress(), time.monotonic() - begin
        idle = psutil.cpu_times().idle - idle
        # At least 0: a process may have ended, and then counts 0.
        spent = {
            kind: Spent(*(max(0.0, a - b) for a, b in zip(after, before[kind], strict=True)))
            for kind, after in self._processor(programs).items()
        }
        steps, pushes = last.global_step - first.global_step, _pushes(last) - _pushes(first)
        use = ProcessorUse(connections, environments, length, steps, pushes, spent, idle)
        return use, begin, last.discarded - first.discarded

    def latencies(self, seconds: float) -> tuple[list[float], float, ProcessorUse]:
        """Return the latency of each action in ms, the start in seconds and the processor use of a single client.

        The client has one environment, and its worker trains. Raises StartError.
        """
        before = self._progress()
        with self._single() as programs:
            self._warm_up(programs, before, 1, seconds)
            (measured,) = programs.measured
            seen = len(measured.act_ms)
            use, _, _ = self._interval(programs, 1, 1, seconds)
            programs.wait_until(lambda: len(measured.act_ms) - seen >= MIN_ACTIONS, time.monotonic() + START_SECONDS)
        self._wait_for_workers_to_end()
        return measured.act_ms[seen:], measured.start_seconds or 0.0, use

    def warnings(self) -> list[str]:
        """Return the lines that the servers have logged as warnings or errors so far."""
        logs = sorted(self._directory.logs.glob("*.log"))
        lines = (line for log in logs for line in log.read_text("utf-8", "replace").splitlines())
        return [line for line in lines if _WARNING.search(line)]

    def start_seconds(self) -> float:
        """Return the time from connecting to the first action of one environment's client. Raises StartError."""
        with self._single() as programs:
            programs.wait_until_acting()
        self._wait_for_workers_to_end()
        return programs.measured[0].start_seconds or 0.0

    def _single(self) -> Programs:
        command = self._plan.environment_command(self._supervisor.rlx_server.address or "", 1, 0)
        return Programs("single", [command], self._folder / "clients", self._tokens.of(CLIENT))

    def _processor(self, programs: Programs) -> dict[str, Spent]:
        """Return the processor seconds so far, by kind of process."""
        roles = {"parameter_server": PARAMETER_SERVER, "replay_server": REPLAY_SERVER, "learner": LEARNER}
        return {
            "client": processor_times(programs.pids, descendants=True),
            "worker": processor_times(self._descendants() - self._without_clients),
        } | {kind: processor_times(self._supervisor.pids(role)) for kind, role in roles.items()}

    def _check(self) -> None:
        for server in (self._supervisor.parameter_server, self._supervisor.rlx_server):
            if server.exit_code() is not None:
                raise StartError(
                    f"{server.name} ended during the benchmark ({server.exit_code()}):\n{server.log_tail()}"
                )

    def _progress(self) -> Progress:
        self._check()
        return self._reader.poll(self._supervisor.parameter_server_address)

    def _warm_up(self, programs: Programs, before: Progress, workers: int, seconds: float) -> None:
        """Wait until the speed is steady. With TensorFlow, the first gradients take seconds for tracing."""
        programs.wait_until_acting()
        programs.wait_until(lambda: self._updates(before, workers) >= WARM_UP_UPDATES, time.monotonic() + START_SECONDS)
        programs.wait(min(WARM_UP_SECONDS, seconds))

    def _updates(self, before: Progress, workers: int) -> int:
        """Return the mean number of gradients of each worker since `before`."""
        return (_pushes(self._progress()) - _pushes(before)) // workers

    def _descendants(self) -> set[int]:
        """Return the RLX server's descendant processes. Raises StartError if the server has ended."""
        self._check()
        server = self._supervisor.rlx_server
        try:
            return {process.pid for process in psutil.Process(server.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            raise StartError(f"{server.name} ended while its workers were counted:\n{server.log_tail()}") from None

    def _worker_megabytes(self) -> tuple[float, ...]:
        sizes = []
        for pid in self._descendants() - self._without_clients:
            with contextlib.suppress(psutil.Error):
                sizes.append(psutil.Process(pid).memory_full_info().uss / MEGABYTE)
        return tuple(sizes)

    def _wait_for_workers_to_end(self) -> None:
        """Wait until no worker remains that would disturb the next measurement."""
        deadline = time.monotonic() + WORKER_END_SECONDS
        while self._descendants() - self._without_clients and time.monotonic() < deadline:
            time.sleep(0.05)


def _pushes(progress: Progress) -> int:
    """Return the number of gradients received."""
    return progress.updates + progress.discarded
