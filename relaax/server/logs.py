"""Logs of the servers, on stderr: lines for people, or one JSON object per line for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from datetime import datetime
from types import FrameType, TracebackType
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_log = logging.getLogger(__name__)
_DEAF = frozenset({logging.__name__, "numba", "llvmlite"})


class TextFormatter(logging.Formatter):
    """Format each message as one line, escaping control characters, so that a peer's text cannot forge a message.

    The traceback of an exception follows on separate lines, which are indented: no text of a peer begins a line.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = _CONTROL.sub(lambda found: repr(found.group())[1:-1], record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        lines = super().formatException(ei).splitlines()  # at each of the line ends that a reader may know
        return "\n".join(f"    {_CONTROL.sub(lambda found: repr(found.group())[1:-1], line)}" for line in lines)


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

    With "json", Python's warnings and uncaught exceptions become such objects too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format_ == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    logging.captureWarnings(format_ == "json")
    if format_ == "json":
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("this process ends with an exception", exc_info=(kind, error, trace))


def _uncaught_in_thread(said: threading.ExceptHookArgs) -> None:
    if said.exc_value is not None:
        _log.critical("a thread has ended with an exception", exc_info=said.exc_value)
