"""The exceptions that end a client's work before the environment's program does."""

from __future__ import annotations

from pathlib import Path

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
