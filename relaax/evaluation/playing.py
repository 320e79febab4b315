"""Episodes of an evaluation, played in parallel processes with one environment each, and their statistics."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relaax.configuration import ConfigurationError
from relaax.lessons.values import Draw, ValueRange, draw
from relaax.supervision.process import EXIT_REFUSED, ending_with_parent, environment_of

if TYPE_CHECKING:
    from relaax.evaluation.report import EvaluationProgress

RESAMPLES = 10_000
_END_SECONDS = 10.0
_LINES = 10
_LINE_CHARACTERS = 65536  # a progress bar may print gigabytes without a newline


@dataclass(frozen=True, slots=True)
class Played:
    """Outcome of one episode.

    number: counted from 0.
    steps: of the environment, each of one or more frames.
    cut: whether the episode was cut off at the limit of steps.
    """

    number: int
    episode_return: float
    length: int
    steps: int
    cut: bool = False


class EpisodePlan(NamedTuple):
    """Number of episodes to play, base of their seeds, and the step at which an episode is cut off.

    `values`: of the environment's parameters, by name.
    """

    episodes: int
    seed: int
    max_steps: int
    values: Mapping[str, ValueRange] = MappingProxyType({})


class PlayingError(Exception):
    """An environment's program failed. The message ends with the last lines of its output."""


def play(
    command: Sequence[str],
    policy: Mapping[str, Any] | None,
    plan: EpisodePlan,
    jobs: int,
    progress: EvaluationProgress,
) -> tuple[list[Played], int]:
    """Play episodes. Return their outcomes in order, and the number of frames per step.

    `command`: the environment's program and its arguments, without the interpreter. `policy`: arguments of
    `relaax.policy.load`; None for random actions. `jobs`: programs that run at the same time, at most. Each program
    requests its next episode. The seed of an episode depends only on the seed of `plan` and on the episode's number.
    Raises ConfigurationError if a program refuses its arguments, and PlayingError if a program fails.
    """
    numbers = iter(range(plan.episodes))
    lock = threading.Lock()
    messages: SimpleQueue[Any] = SimpleQueue()

    def next_episode() -> dict[str, Any] | None:
        with lock:
            number = next(numbers, None)
        if number is None:
            return None
        numbers_of = draw(plan.values, Draw(plan.seed, 0, 0, number))
        parameters = dict(zip(plan.values, numbers_of.tolist(), strict=True))
        seed = seed_of(plan.seed, number)
        return {"number": number, "seed": seed, "max_steps": plan.max_steps, "parameters": parameters}

    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(_ProgramProcess(command, policy)) for _ in range(min(jobs, plan.episodes))]
        for program in programs:
            threading.Thread(target=program.serve, args=(next_episode, messages.put), daemon=True).start()
        played: list[Played] = []
        frame_skip, running = 1, len(programs)
        while running:
            message = messages.get()
            if message is None:
                running -= 1
            elif isinstance(message, Exception):
                raise message
            elif "frame_skip" in message:
                frame_skip = message["frame_skip"]
            elif "playing" in message:
                progress.show_step(message["playing"], message["steps"])
            else:
                played.append(Played(**message))
                progress.add_episode(played[-1].episode_return)
    return sorted(played, key=lambda one: one.number), frame_skip


class _ProgramProcess:
    """A process that runs the environment's program, and a socket to it (see `relaax.evaluation.program`)."""

    def __init__(self, command: Sequence[str], policy: Mapping[str, Any] | None) -> None:
        own_end, program_end = socket.socketpair()
        self._lines = own_end.makefile("rw", encoding="utf-8")
        own_end.close()
        with program_end:
            player_command = [
                sys.executable,
                "-m",
                "relaax.evaluation.program",
                str(program_end.fileno()),
                json.dumps(policy),
            ]
            self._popen = subprocess.Popen(
                ending_with_parent([*player_command, *command]),
                pass_fds=(program_end.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                env=environment_of({}),
            )
        self._output: deque[str] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()

    def __enter__(self) -> _ProgramProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)  # also a simulator of a program that has ended
        self._popen.wait()
        self._reader.join(_END_SECONDS)
        with contextlib.suppress(OSError):
            self._lines.close()

    def _read_output(self) -> None:
        assert self._popen.stdout is not None
        while line := self._popen.stdout.readline(_LINE_CHARACTERS):
            self._output.append(line.rstrip())

    def serve(self, next_episode: Callable[[], dict[str, int] | None], report: Callable[[Any], None]) -> None:
        """Reply to the program until it exits. Pass its messages to `report`, then None, or the error if it failed."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "next" in message:
                    self._lines.write(json.dumps(next_episode()) + "\n")
                    self._lines.flush()
                else:
                    report(message)
        code = self._popen.wait()
        self._reader.join(_END_SECONDS)
        output = "\n".join(self._output)
        if code == 0:
            report(None)
        elif code == EXIT_REFUSED:
            report(
                ConfigurationError(output or "the environment's program refused its arguments without an explanation")
            )
        else:
            report(PlayingError(f"the environment's program ended with code {code}:\n{output}"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the returns of some episodes.

    `std` is the sample standard deviation (n - 1). `low` and `high` bound the 95 % confidence interval of the mean.
    """

    episodes: int
    mean: float
    std: float
    low: float
    high: float
    median: float
    smallest: float
    largest: float


def statistics_of(returns: Sequence[float]) -> Statistics:
    """Return the statistics of one or more returns.

    The interval is a percentile bootstrap (Efron 1979), because returns are often skewed. It uses 10,000 resamples and
    a fixed seed, so the same returns give the same interval.
    """
    values = np.asarray(returns, np.float64)
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return Statistics(
        episodes=len(values),
        mean=float(values.mean()),
        std=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        low=float(low),
        high=float(high),
        median=float(np.median(values)),
        smallest=float(values.min()),
        largest=float(values.max()),
    )


def seed_of(seed: int, number: int) -> int:
    """Return the seed of episode `number`, below 2^31. It does not depend on how many programs run."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
