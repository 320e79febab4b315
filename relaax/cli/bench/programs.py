"""Run environment programs, with the service or alone, and read their measurements."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil

from relaax.cli.options import cores
from relaax.cli.run.plan import Plan
from relaax.client.connection.address import RANDOM
from relaax.client.program.process import measure_file
from relaax.evaluation.protocols import is_ale
from relaax.supervision.process import Process, StartError

START_SECONDS = 90.0
EACH_START_SECONDS = 2.0
"""Additional time per program: they start together, and each imports an emulator."""
END_SECONDS = 3.0
POLL_SECONDS = 0.1
WARM_UP_SECONDS = 0.5


def pluralize(number: int, one: str, more: str) -> str:
    """Return a number with its unit, singular or plural."""
    return f"{number} {one if number == 1 else more}"


class Spent(NamedTuple):
    """Processor seconds: in the programs themselves, and in the kernel of the operating system for them."""

    user: float
    system: float


def processor_seconds(pids: Iterable[int | None], descendants: bool = False) -> float:
    """Return user and system seconds of these processes so far (see `processor_times`)."""
    return sum(processor_times(pids, descendants))


def processor_times(pids: Iterable[int | None], descendants: bool = False) -> Spent:
    """Return the processor seconds of these processes so far. Ended processes count 0.

    `descendants`: include their descendants, such as environments in processes of their own.
    """
    user = system = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in [process, *(process.children(recursive=True) if descendants else ())]:
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    user, system = user + times.user, system + times.system
    return Spent(user, system)


def terminate(*processes: Process, seconds: float = 2.0) -> None:
    """Terminate processes, and kill them if they do not end within `seconds`."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + seconds
    for process in processes:
        if not process.wait(deadline - time.monotonic()):
            process.kill()
            process.wait(1.0)


@dataclass(slots=True)
class Measurements:
    """The measurements that a program with `--measure` has written so far."""

    file: Path
    start_seconds: float | None = None
    steps: list[tuple[float, int]] = field(default_factory=list)
    act_ms: list[float] = field(default_factory=list)
    _read: int = 0

    def update(self) -> None:
        """Read new complete lines."""
        if not self.file.exists():
            return
        with self.file.open("rb") as file:
            file.seek(self._read)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in map(json.loads, whole.splitlines()):
            self.start_seconds = line.get("start_seconds", self.start_seconds)
            self.steps.append((line["time"], line["steps"]))
            self.act_ms += line.get("act_ms", ())

    def steps_per_second(self, begin: float, end: float) -> float:
        """Return the speed from the last line before an interval to the last line in it; 0 for fewer than two lines."""
        until = [line for line in self.steps if line[0] <= end]
        earlier = [line for line in until if line[0] <= begin]
        if len(until) < 2:
            return 0.0
        (first, before), (last, after) = earlier[-1] if earlier else until[0], until[-1]
        return (after - before) / (last - first) if last > first else 0.0


class Programs:
    """Programs that run concurrently, each in its own process, and are stopped at the end of the block.

    `folder` receives the log and the measurements of each.
    """

    def __init__(
        self,
        name: str,
        commands: Sequence[Sequence[str]],
        folder: Path,
        secrets: Mapping[str, str] | None = None,
        connections: int = 1,
    ) -> None:
        """`secrets`: tokens by environment variable, by default none. `connections`: connections per program."""
        folder.mkdir(parents=True, exist_ok=True)
        stamp = time.monotonic_ns()
        logs = [folder / f"{name}-{i}-{stamp}.log" for i in range(len(commands))]
        self._processes = [Process(f"{name}-{i}", log, secrets=secrets or {}) for i, log in enumerate(logs)]
        self._files = [log.with_suffix(".jsonl") for log in logs]
        self.measured = [Measurements(measure_file(file, i)) for file in self._files for i in range(connections)]
        self._connections = connections
        self._commands = commands

    def __enter__(self) -> Programs:
        try:
            for process, command, file in zip(self._processes, self._commands, self._files, strict=True):
                process.start([*command, "--measure", str(file)])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        terminate(*self._processes, seconds=END_SECONDS)
        for measured in self.measured:
            measured.update()

    @property
    def pids(self) -> list[int | None]:
        """Return the process id of each program."""
        return [process.pid for process in self._processes]

    def wait_until_acting(self) -> None:
        """Wait until each program has received an action. Raises StartError if one receives none in time, or ends."""
        seconds = START_SECONDS + EACH_START_SECONDS * len(self.measured)
        deadline = time.monotonic() + seconds
        self.wait_until(lambda: all(measured.steps for measured in self.measured), deadline)
        for index, measured in enumerate(self.measured):
            process = self._processes[index // self._connections]
            if not measured.steps:
                raise StartError(f"{process.name} received no action within {seconds:g} s:\n{process.log_tail()}")

    def wait(self, seconds: float) -> None:
        """Let the programs run. Raises StartError if one has ended."""
        self.wait_until(lambda: False, time.monotonic() + seconds)

    def wait_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait until the condition holds or the deadline passes; return whether it holds. Raises StartError."""
        while True:
            for measured in self.measured:
                measured.update()
            for process in self._processes:
                code = process.exit_code()
                if code is not None:
                    raise process.start_error(f"ended during the measurement ({code})")
            if condition():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, POLL_SECONDS))

    def window(self, warm_up: float, seconds: float) -> float:
        """Return the total steps per second over an interval after a warm-up."""
        self.wait_until_acting()
        self.wait(warm_up)
        begin = time.monotonic()
        self.wait(seconds)
        now = time.monotonic()
        return sum(measured.steps_per_second(begin, now) for measured in self.measured)


@dataclass(frozen=True, slots=True)
class EmulatorForm:
    """A way to run the experiment's environments alone: a name, and commands that run concurrently.

    Actions are drawn at random, without service and client. The commands of `with_network` also compute networks.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]

    def window(self, seconds: float, folder: Path) -> float:
        """Return steps per second. Raises StartError."""
        with Programs("emulator", self.commands, folder) as programs:
            speed = programs.window(WARM_UP_SECONDS, seconds)
        if speed <= 0:
            raise StartError(f"the environments alone took no step in {seconds:g} s; give more --seconds")
        return speed


def _one_thread(plan: Plan) -> list[str]:
    """Return the arguments for one thread. ale-py's own threads would compete with the other processes."""
    return ["--threads", "1"] if is_ale(plan.environment_main) else []


def emulator_forms(plan: Plan) -> list[EmulatorForm]:
    """Return ways to step as many environments as in training, with the same program and arguments."""
    clients, total = plan.run.clients, plan.environments
    processes = min(cores(), total)
    shares = [(total + i) // processes for i in range(processes)]
    one_thread = _one_thread(plan)
    each = [
        tuple(plan.environment_command(RANDOM, share, sum(shares[:i])) + one_thread) for i, share in enumerate(shares)
    ]
    as_trained = tuple(tuple(plan.client_command(RANDOM, i)) for i in range(clients))
    found = [
        EmulatorForm(f"{pluralize(processes, 'process', 'processes')}, one per core", tuple(each)),
        EmulatorForm(f"{pluralize(clients, 'process', 'processes')}, as in training", as_trained),
    ]
    if one_thread:
        whole = [*plan.environment_command(RANDOM, total, 0), "--threads", str(cores())]
        found.append(EmulatorForm(f"1 process, {pluralize(cores(), 'thread', 'threads')}", (tuple(whole),)))
    return [form for i, form in enumerate(found) if form.commands not in [other.commands for other in found[:i]]]


def with_network(plan: Plan, configuration: Path) -> EmulatorForm:
    """Return a process for each connection, with its environments and its worker's network.

    `configuration`: file of the effective configuration.
    """
    count = plan.run.envs_per_client
    one_thread = _one_thread(plan)
    commands = []
    for i in range(plan.run.clients * plan.run.connections_per_client):
        interpreter, *program = plan.environment_command(RANDOM, count, i * count)
        commands.append((interpreter, "-m", "relaax.cli.bench.network", str(configuration), *program, *one_thread))
    return EmulatorForm("with the network", tuple(commands))
