"""Play episodes in as many processes as are wanted, each with one environment, and find what came of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relaax.configuration import ConfigurationError
from relaax.supervision.process import EXIT_REFUSED, ending_with_parent, environment_of

if TYPE_CHECKING:
    from relaax.evaluation.report import EvaluationProgress

RESAMPLES = 10_000
_END_SECONDS = 10.0
_LINES = 10


@dataclass(frozen=True, slots=True)
class Played:
    """One episode: its number, counted from 0, return, length and steps.

    `steps`: of the environment until the episode was over, each of some frames. `cut`: whether it was cut off.
    """

    number: int
    episode_return: float
    length: int
    steps: int
    cut: bool = False


class EpisodesAsked(NamedTuple):
    """How many episodes to play, what their seeds come from, and the steps at which one is cut off."""

    episodes: int
    seed: int
    max_steps: int


class PlayingError(Exception):
    """An environment's program failed. The message has its last words."""


def play(
    command: Sequence[str],
    policy: Mapping[str, Any] | None,
    asked: EpisodesAsked,
    jobs: int,
    progress: EvaluationProgress,
) -> tuple[list[Played], int]:
    """Play episodes, and return them in order, and the frames of a step.

    `command`: of the environment's program, as the interpreter takes it. `policy`: arguments of `relaax.policy.load`,
    None for random actions. `jobs`: the most programs at a time. Each program asks for its next episode, whose seed
    depends on that of `asked` and its number alone. Raises ConfigurationError if a program refuses its arguments, and
    PlayingError if one fails.
    """
    todo = iter(range(asked.episodes))
    lock = threading.Lock()
    news: SimpleQueue[Any] = SimpleQueue()

    def next_game() -> dict[str, int] | None:
        with lock:
            number = next(todo, None)
        if number is None:
            return None
        return {"number": number, "seed": seed_of(asked.seed, number), "max_steps": asked.max_steps}

    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(_Program(command, policy)) for _ in range(min(jobs, asked.episodes))]
        for program in programs:
            threading.Thread(target=program.serve, args=(next_game, news.put), daemon=True).start()
        played: list[Played] = []
        frame_skip, running = 1, len(programs)
        while running:
            message = news.get()
            if message is None:
                running -= 1
            elif isinstance(message, Exception):
                raise message
            elif "frame_skip" in message:
                frame_skip = message["frame_skip"]
            elif "playing" in message:
                progress.under_way(message["playing"], message["steps"])
            else:
                played.append(Played(**message))
                progress.ended(played[-1].episode_return)
    return sorted(played, key=lambda one: one.number), frame_skip


class _Program:
    """A process with the environment's program, and a socket to it; see `relaax.evaluation.program`."""

    def __init__(self, command: Sequence[str], policy: Mapping[str, Any] | None) -> None:
        here, there = socket.socketpair()
        self._lines = here.makefile("rw", encoding="utf-8")
        here.close()
        with there:
            player = [sys.executable, "-m", "relaax.evaluation.program", str(there.fileno()), json.dumps(policy)]
            self._popen = subprocess.Popen(
                ending_with_parent([*player, *command]),
                pass_fds=(there.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                env=environment_of({}),
            )
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._listener.join(_END_SECONDS)
        with contextlib.suppress(OSError):
            self._lines.close()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._said.append(line.rstrip())

    def serve(self, next_game: Callable[[], dict[str, int] | None], tell: Callable[[Any], None]) -> None:
        """Answer the program until it ends; tell its messages, then None, or the error that it ended with."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "next" in message:
                    self._lines.write(json.dumps(next_game()) + "\n")
                    self._lines.flush()
                else:
                    tell(message)
        code = self._popen.wait()
        self._listener.join(_END_SECONDS)
        words = "\n".join(self._said[-_LINES:])
        if code == 0:
            tell(None)
        elif code == EXIT_REFUSED:
            tell(ConfigurationError(words or "the environment's program refused its arguments"))
        else:
            tell(PlayingError(f"the environment's program ended with code {code}:\n{words}"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the returns of some episodes.

    `std` is that of the sample (n - 1). `low` and `high` bound the mean's 95 % confidence interval.
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

    The interval is the percentile bootstrap's (Efron 1979), of 10,000 resamples with a fixed seed: returns are often
    skewed, and the same returns give the same interval.
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
    """Return the seed of an episode, below 2^31. It depends on nothing else: not on how many are played at a time."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)
