"""Libraries that may not be installed, and the extra that provides each: `pip install 'relaax[server]'`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_BY_EXTRA = {
    "server": "cryptography grpc grpc_health grpc_reflection honcho numba packaging prometheus_client psutil pydantic "
    "rich safetensors tenacity tensorboard typer websockets yaml",
    "websocket": "websockets",
    "tensorflow": "tensorflow",
    "policy": "pydantic yaml",
    "gym": "gymnasium",
    "box2d": "Box2D pygame",
    "mujoco": "mujoco",
    "atari": "ale_py cv2",
    "minatar": "minatar",
    "vizdoom": "vizdoom gymnasium cv2",
    "miniworld": "miniworld gymnasium pyglet",
    "miniwob": "miniwob gymnasium selenium cv2",
    "s3": "boto3 botocore",
    "plot": "matplotlib",
    "watch": "imageio imageio_ffmpeg pygame",
    "onnx": "onnx",
    "cluster": "ray",
}
EXTRAS = {
    library: [extra for extra, others in _BY_EXTRA.items() if library in others.split()]
    for libraries in _BY_EXTRA.values()
    for library in libraries.split()
}
"""Extras by the import name of the library."""


def missing(error: BaseException, extra: str = "server") -> str | None:
    """Return a sentence that names the missing library and its extra; None for any other error.

    `extra`: the extra to name if several provide the library. Causes are searched too, as a library may have wrapped
    the original error.
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
    """Raise a ModuleNotFoundError with only the sentence of `missing`, for use in other programs."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = missing(error, extra)
        if sentence is None:
            raise
        raise ModuleNotFoundError(sentence, name=error.name) from None


@contextlib.contextmanager
def named(program: str) -> Iterator[None]:
    """Exit with code 2 and one sentence if a library of EXTRAS is not installed, for use in a command."""
    try:
        yield
    except ModuleNotFoundError as error:
        sentence = missing(error)
        if sentence is None:
            raise
        print(f"{program}: {sentence}", file=sys.stderr)
        sys.exit(2)
