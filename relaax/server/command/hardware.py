"""The hardware that workers and learners compute on: their device, and OpenBLAS's kernels for the processor."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NoReturn

from relaax.configuration import ConfigurationError, LearnerSection, RlxServerSection
from relaax.configuration.roles import section_of
from relaax.files import anonymous_file
from relaax.nn.tensorflow_loading import load_within

if TYPE_CHECKING:
    from relaax.algorithm_base import ConfigBase

_log = logging.getLogger(__name__)

BlasKernels = Literal["environment", "native"]

DESCRIPTIONS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that describe a processor to OpenBLAS, which otherwise detects it."""


class RestartRequired(Exception):
    """The process must be restarted with `environment`. `restarting` does so."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__("this process must be restarted")
        self.environment = environment


def use_kernels(which: BlasKernels, environment: Mapping[str, str]) -> None:
    """Raise RestartRequired if native kernels are configured but the environment describes another processor.

    A restart is necessary because OpenBLAS reads the variables when numpy is imported. On a Zen 5 described as a
    Haswell, the Atari network takes 1.5 to 1.9 times as long to act and learn.
    """
    described = [name for name in DESCRIPTIONS if environment.get(name)]
    if not described:
        return
    settings = ", ".join(f"{name} is {environment[name]}" for name in described)
    if which != "native":
        _log.info("%s: if this processor has faster instructions, set blas-kernels: native", settings)
        return
    _log.info("%s: the process restarts without it because blas-kernels is native", settings)
    raise RestartRequired({name: value for name, value in environment.items() if name not in DESCRIPTIONS})


@contextlib.contextmanager
def restarting(command: str) -> Iterator[None]:
    """Restart the program if RestartRequired is raised inside. If that fails, print why and exit with code 2."""
    try:
        yield
    except RestartRequired as asked:
        try:
            restart_program(asked.environment)
        except OSError as error:
            why = f"{sys.executable} cannot be restarted: {error.strerror}"
            print(f"{command}: {why}; unset {' and '.join(DESCRIPTIONS)} instead", file=sys.stderr)
            sys.exit(2)


def restart_program(environment: Mapping[str, str]) -> NoReturn:
    """Restart the program in this process with the same process id, arguments and open descriptors. Raises OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def device_of(settings: RlxServerSection | LearnerSection, config: ConfigBase) -> str:
    """Return the device. If the process's own section has none, `algorithm.gpu` applies."""
    return settings.device or ("gpu" if config.gpu else "cpu")


def device_error(settings: RlxServerSection | LearnerSection, refusal: str) -> ConfigurationError:
    """Return the error for a device that cannot be used, with the key that chose it."""
    by = "" if settings.device else " (by algorithm.gpu)"
    return ConfigurationError(f"{section_of(settings)}.device{by}: {refusal}")


@contextlib.contextmanager
def native_messages_held_back() -> Iterator[None]:
    """Buffer output to stderr, including that of C libraries. Write it if an exception is raised, else drop it."""
    stderr = 2
    sys.stderr.flush()
    own = os.dup(stderr)
    with anonymous_file() as held:
        os.dup2(held.fileno(), stderr)
        try:
            yield
        except Exception:
            os.dup2(own, stderr)
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(own, stderr)
            os.close(own)


def load_tensorflow_quietly() -> None:
    """Make TensorFlow load without output to stderr, such as messages about missing GPUs, whenever it is loaded."""
    load_within(native_messages_held_back)
