"""Which of its kernels OpenBLAS may use for the products of matrices that workers compute."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Literal, NoReturn

_log = logging.getLogger(__name__)

BlasKernels = Literal["environment", "native"]

DESCRIPTIONS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Variables that describe a processor to OpenBLAS, which otherwise looks for itself."""


class StartAnew(Exception):
    """The process must be started anew, with `environment`: for `main`, which owns it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__("this process must be started anew")
        self.environment = environment


def use_kernels(which: BlasKernels, environment: Mapping[str, str]) -> None:
    """Native kernels: where the environment describes another processor, this process must be started without that.

    OpenBLAS has read the variables when numpy was loaded. Measured on a Zen 5 that is called a Haswell: the Atari
    network acts and learns in 1.5 to 1.9 times as long. Raises StartAnew.
    """
    described = [name for name in DESCRIPTIONS if environment.get(name)]
    if not described:
        return
    said = ", ".join(f"{name} is {environment[name]}" for name in described)
    if which != "native":
        _log.info("%s: where this processor can do more, blas-kernels: native lets it", said)
        return
    _log.info("%s: the server starts anew without that, as blas-kernels: native asks", said)
    raise StartAnew({name: value for name, value in environment.items() if name not in DESCRIPTIONS})


def start_anew(environment: Mapping[str, str]) -> NoReturn:
    """The same program in this process, which keeps its number, its arguments and what it has open. Raises OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
