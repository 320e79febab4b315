"""Exceptions of clients, and errors about unknown arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from relaax.rlx import ErrorCode


class Failure(Exception):
    """A failure of the agent or its server that retries cannot solve, or that has outlasted `retry_seconds`.

    `code`: the server's error code; None if the server sent none.
    """

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class CannotWrite(Failure):
    """A requested file that cannot be written, for lack of space or permission."""

    def __init__(self, option: str, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write {option} {path}: {error.strerror or error}")


class EnvironmentExit(Failure):
    """A call of sys.exit() by the environment, for example a game whose window was closed."""


class EnvironmentFault(ValueError):
    """An invalid value from an environment. The message names the environment and the value."""


class TrainingFinished(Exception):
    """The end of training: the environment's program should exit cleanly.

    `global_step`: environment steps consumed by training, over all workers.
    """

    def __init__(self, message: str, global_step: int) -> None:
        super().__init__(message)
        self.message = message
        self.global_step = global_step


class ConnectionInterrupted(Exception):
    """The end of a connection, or a failed attempt to connect.

    `retryable`: whether another attempt may succeed. `retry_after`: the wait that the server requests, in seconds.
    """

    def __init__(
        self, message: str, *, retryable: bool = True, retry_after: float = 0.0, code: ErrorCode | None = None
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.code = code


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint with the most similar known word; empty if none is similar."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def require_known(call: Callable[..., Any], given: Iterable[str], *passed_to: Callable[..., Any]) -> None:
    """Raise TypeError for a keyword argument that neither `call` nor a function of `passed_to` accepts."""
    parameters = [name for one in (call, *passed_to) for name in inspect.signature(one).parameters]
    known = [name for name in parameters if name != "self" and not name.startswith("_")]
    for name in given:
        if name not in known:
            what = call.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{what}() has no argument {name!r}{did_you_mean(name, known)}")
