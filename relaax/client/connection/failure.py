"""The exceptions that end a client's work before the environment's program does."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from relaax.rlx import ErrorCode


class Failure(Exception):
    """The agent's side failed for good: retrying will not help, or has been tried for long enough.

    `code` is the server's error code if the server said why, else None.
    """

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class CannotWrite(Failure):
    """A file that was asked for cannot be written: there is no space left, or it may not be."""

    def __init__(self, option: str, path: Path, error: OSError) -> None:
        super().__init__(f"cannot write {option} {path}: {error.strerror or error}")


class EnvironmentExit(Failure):
    """The environment called sys.exit(), as games do when their window is closed."""


class EnvironmentFault(ValueError):
    """An environment handed out something that cannot be used. The message names the environment and the value."""


class TrainingFinished(Exception):
    """Training has reached its end: the environment's program should end cleanly.

    `global_step` counts the environment steps consumed by training, over all workers.
    """

    def __init__(self, message: str, global_step: int) -> None:
        super().__init__(message)
        self.message = message
        self.global_step = global_step


class ConnectionInterrupted(Exception):
    """A connection ended, or was never made. `retryable` says whether another one may succeed.

    `retry_after` is the wait in seconds that the server asks for.
    """

    def __init__(
        self, message: str, *, retryable: bool = True, retry_after: float = 0.0, code: ErrorCode | None = None
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.code = code


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a clause that names the most similar known word; empty if none is similar."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def require_known(call: Callable[..., Any], given: Iterable[str], *passed_to: Callable[..., Any]) -> None:
    """Raise TypeError for a keyword argument that neither `call` nor what it passes its others to has."""
    parameters = [name for one in (call, *passed_to) for name in inspect.signature(one).parameters]
    known = [name for name in parameters if name != "self" and not name.startswith("_")]
    for name in given:
        if name not in known:
            what = call.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{what}() has no argument {name!r}{did_you_mean(name, known)}")
