"""Libraries that an installation may lack, and the extra that brings each: `pip install 'relaax[server]'`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_BY_EXTRA = {
    "server": "cryptography grpc grpc_health grpc_reflection honcho numba packaging prometheus_client psutil pydantic "
    "rich safetensors tenacity tensorboard tensorflow typer yaml",
    "policy": "pydantic yaml",
    "gym": "gymnasium",
    "box2d": "Box2D pygame",
    "mujoco": "mujoco",
    "atari": "ale_py cv2",
    "minatar": "minatar",
    "s3": "boto3 botocore",
    "plot": "matplotlib",
}
EXTRAS = {
    library: [extra for extra, others in _BY_EXTRA.items() if library in others.split()]
    for libraries in _BY_EXTRA.values()
    for library in libraries.split()
}
"""Extras by the name under which Python knows the library."""


def missing(error: BaseException, extra: str = "server") -> str | None:
    """The sentence that names the library that was not found, and its extra; None where it is not such an error.

    `extra`: the one that is named if several bring the library. A library may have wrapped the error that says what was
    not found into one of its own.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError):
            library = (cause.name or "").partition(".")[0]
            if library in EXTRAS:
                extras = EXTRAS[library]
                return f"{library} is not installed; pip install 'relaax[{extra if extra in extras else extras[0]}]'"
        cause = cause.__cause__
    return None


@contextlib.contextmanager
def explained(extra: str) -> Iterator[None]:
    """For other programs: a ModuleNotFoundError that says no more than the sentence of `missing`."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = missing(error, extra)
        if sentence is None:
            raise
        raise ModuleNotFoundError(sentence, name=error.name) from None


@contextlib.contextmanager
def named(program: str) -> Iterator[None]:
    """For a command: exit code 2 and one sentence where a library of EXTRAS is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = missing(error)
        if sentence is None:
            raise
        print(f"{program}: {sentence}", file=sys.stderr)
        sys.exit(2)
