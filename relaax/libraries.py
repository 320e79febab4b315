"""Libraries: their environment variables, late imports, and the extras that install missing ones.

A command sets the variables before its first import of a library, so this module imports only the standard library.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

LIBRARY_VARIABLES = {
    "GRPC_VERBOSITY": "NONE",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""Each library gets one thread, because a process with several threads cannot be forked, and a machine runs many
processes. Arrow, which TensorFlow imports with pandas, starts no thread. TensorFlow and gRPC log nothing. gRPC would
log each failed handshake and each malformed header."""


def missing_from(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the user has not set."""
    return {name: value for name, value in LIBRARY_VARIABLES.items() if name not in environment}


_BY_EXTRA = {
    "server": "cryptography grpc grpc_health grpc_reflection honcho numba packaging prometheus_client psutil pydantic "
    "rich safetensors tensorboard typer websockets yaml",
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
    "pettingzoo": "pettingzoo gymnasium pygame",
    "s3": "boto3 botocore",
    "plot": "matplotlib",
    "watch": "imageio imageio_ffmpeg pygame",
    "onnx": "onnx",
    "tune": "optuna",
    "cluster": "ray",
    "demonstrations": "pyarrow",
    "mlflow": "mlflow",
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


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose exports are imported when they are first used (PEP 562).

    `modules`: module by exported name, such as `.agent`. A process imports only the modules that it uses. For example,
    `relaax run` imports the configuration of an algorithm and not its agent.
    """

    def export(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name], package), name)

    return export
