"""Libraries that an installation may lack, and the extra that brings each: `pip install 'relaax[server]'`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_BY_EXTRA = {
    "server": "cryptography grpc grpc_health grpc_reflection honcho numba packaging prometheus_client psutil pydantic "
    "rich safetensors tenacity tensorboard tensorflow typer yaml",
    "gym": "gymnasium",
    "box2d": "Box2D pygame",
    "mujoco": "mujoco",
    "atari": "ale_py cv2",
    "minatar": "minatar",
    "s3": "boto3 botocore",
    "plot": "matplotlib",
}
EXTRAS = {library: extra for extra, libraries in _BY_EXTRA.items() for library in libraries.split()}
"""Extra by the name under which Python knows the library."""


def missing(error: BaseException) -> str | None:
    """The sentence that names the library that was not found, and its extra; None where it is not such an error.

    A library may have wrapped the error that says what was not found into one of its own.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError):
            library = (cause.name or "").partition(".")[0]
            if library in EXTRAS:
                return f"{library} is not installed; pip install 'relaax[{EXTRAS[library]}]'"
        cause = cause.__cause__
    return None


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
