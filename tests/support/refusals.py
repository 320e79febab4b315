"""Commands of the roles that end at once with a refusal or an answer, called in this process."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from typer.testing import CliRunner, Result

from relaax.nn import devices
from relaax.server.learner import process as learner_process


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Restore the process state that a command changes. Pretend that there is no GPU, without loading TensorFlow."""
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    using: dict[str, Any] = {
        "use_device": lambda device: None if device == devices.CPU else devices.select_gpu(device, []),
        "use_one_thread": lambda: None,
    }
    try:
        with patch.multiple(devices, **using), patch.multiple(learner_process, **using):
            yield
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        sys.excepthook, threading.excepthook = hooks


def outcome_of(app: typer.Typer, *arguments: str | Path) -> Result:
    """Return what a command prints to stdout and stderr, and its exit code."""
    with _unchanged_process():
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refusal(app: typer.Typer, *arguments: str | Path, code: int = 2) -> str:
    """Return the stderr of a command that ends with `code` and does not write to stdout."""
    result = outcome_of(app, *arguments)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    return str(result.stderr)
