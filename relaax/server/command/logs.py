"""Logs of the servers, on stderr: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from types import FrameType
from typing import Any

from relaax.console import LineFormatter, log_uncaught_exceptions

_TEXT = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"
_DEAF = frozenset({logging.__name__, "numba", "llvmlite"})


class JsonFormatter(logging.Formatter):
    """Format each message as a JSON object in one line of ASCII: `time` (ISO 8601 with its zone), `level`, `logger`,
    `process`, `message`, and `exception` (a traceback) if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)


def may_not_raise(frame: FrameType | None) -> bool:
    """Return whether `frame` is inside what takes no exception from a signal, which has to come again then.

    Logging prints it and goes on. The compiler is called by C code, which drops it, and may crash.
    """
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEAF:
            return True
        frame = frame.f_back
    return False


def configure_logging(level: str, format_: str = "text") -> None:
    """Send messages of `level` and above to stderr, as "text" or "json" (see `relaax-...-server.log_format`).

    Uncaught exceptions become such messages, too, and with "json" Python's warnings.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_ == "json" else LineFormatter(_TEXT))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(format_ == "json")
    log_uncaught_exceptions()
