"""Logs of the servers, on stderr: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from types import FrameType
from typing import Any

from relaax.console import LineFormatter, log_uncaught_exceptions

TEXT_FORMAT = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"
_UNSAFE_MODULES = frozenset({logging.__name__, "numba", "llvmlite"})


class JsonFormatter(logging.Formatter):
    """Format each message as a JSON object in one line of ASCII: `time` (ISO 8601 with its zone), `level`, `logger`,
    `process`, `message`, and `exception` (a traceback) if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def is_exception_unsafe(frame: FrameType | None) -> bool:
    """Return whether an exception from a signal handler would be lost at `frame`.

    If so, the signal must be repeated later. Logging prints such an exception and continues. The compiler numba is
    called by C code, which drops the exception and may crash.
    """
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _UNSAFE_MODULES:
            return True
        frame = frame.f_back
    return False


def configure_logging(level: str, format_: str = "text") -> None:
    """Send messages of `level` and above to stderr, as "text" or "json" (see `relaax-...-server.log_format`).

    Uncaught exceptions become messages too. With "json", so do Python's warnings.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_ == "json" else LineFormatter(TEXT_FORMAT))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(format_ == "json")
    log_uncaught_exceptions()
