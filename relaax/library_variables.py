"""Environment variables that numerical libraries read when they are imported.

A command sets them before its first import of a library. This module therefore imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping

LIBRARY_VARIABLES = {
    "GRPC_VERBOSITY": "NONE",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""One thread, because a process with several cannot be forked and a machine has many processes; no messages
of TensorFlow, nor of gRPC, which logs each failed handshake and each malformed header."""


def missing_from(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the user has not set."""
    return {name: value for name, value in LIBRARY_VARIABLES.items() if name not in environment}
