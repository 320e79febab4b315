"""Play episodes in as many processes as are wanted, each with one environment."""

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
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from relaax.configuration import ConfigurationError
from relaax.evaluation.result import Played, seed_of
from relaax.supervision.process import EXIT_REFUSED, ending_with_parent, environment_of

_END_SECONDS = 10.0
_LINES = 10


class EpisodesAsked(NamedTuple):
    """How many episodes to play, what their seeds come from, and the steps at which one is cut off."""

    episodes: int
    seed: int
    max_steps: int


class Watcher(Protocol):
    """The receiver of the progress of an evaluation."""

    def ended(self, played: Played) -> None:
        """Note an episode that has ended."""

    def under_way(self, number: int, steps: int) -> None:
        """Note the steps of an episode that is under way, about once a second."""


class PlayingError(Exception):
    """An environment's program failed. The message has its last words."""


def play(
    command: Sequence[str], policy: Mapping[str, Any] | None, asked: EpisodesAsked, jobs: int, watcher: Watcher
) -> tuple[list[Played], int]:
    """Play episodes, and return them in order, and the frames of a step.

    `command`: of the environment's program, as the interpreter takes it. `policy`: arguments of `relaax.policy.load`,
    None for random actions. `jobs`: the most programs at a time. Each program asks for its next episode, whose seed
    depends on that of `asked` and its number alone. Raises ConfigurationError if a program refuses its arguments, and
    PlayingError if one fails.
    """
    todo = iter(range(asked.episodes))
    news: SimpleQueue[Any] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(_Program(command, policy)) for _ in range(min(jobs, asked.episodes))]
        lock = threading.Lock()

        def next_game() -> dict[str, int] | None:
            with lock:
                number = next(todo, None)
            if number is None:
                return None
            return {"number": number, "seed": seed_of(asked.seed, number), "max_steps": asked.max_steps}

        for program in programs:
            threading.Thread(target=program.serve, args=(next_game, news.put), daemon=True).start()
        played: list[Played] = []
        frame_skip, running = 1, len(programs)
        while running:
            message = news.get()
            if isinstance(message, Played):
                played.append(message)
                watcher.ended(message)
            elif isinstance(message, dict):
                watcher.under_way(message["playing"], message["steps"])
            elif isinstance(message, int):
                frame_skip = message
            elif message is None:
                running -= 1
            else:
                raise message
    return sorted(played, key=lambda one: one.number), frame_skip


class _Program:
    """A process with the environment's program, and a socket to it."""

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
        """Answer the program until it ends; tell what it says, then None, or the error that it ended with."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "next" in message:
                    self._lines.write(json.dumps(next_game()) + "\n")
                    self._lines.flush()
                else:
                    tell(_news(message))
        code = self._popen.wait()
        self._listener.join(_END_SECONDS)
        words = "\n".join(self._said[-_LINES:])
        if code == 0:
            tell(None)
        elif code == EXIT_REFUSED:
            tell(ConfigurationError(words or "the environment's program refused its arguments"))
        else:
            tell(PlayingError(f"the environment's program ended with code {code}:\n{words}"))


def _news(message: dict[str, Any]) -> Any:
    """Return what a message of the program means: frames of a step, an episode under way, or one that has ended."""
    if "frame_skip" in message:
        return message["frame_skip"]
    return message if "playing" in message else Played(**message)
