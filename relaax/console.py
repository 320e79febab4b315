"""Output of programs: log messages, errors and numbers.

Line ends in a text from a peer or a file are escaped or indented, so the text cannot imitate a message.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from types import TracebackType
from typing import Any, TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_INDENT = "    "
_log = logging.getLogger(__name__)


class LineFormatter(logging.Formatter):
    """Format each message as one line, escaping control characters.

    The traceback of an exception follows on separate lines, which are indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - the name is logging's
        return _indented(stack_info)


def one_line(text: object) -> str:
    """Return `text` with control characters escaped, line ends among them, except tabs."""
    return _CONTROL.sub(lambda found: repr(found.group())[1:-1], str(text))


def log_to_stderr(format_: str, level: str = "WARNING", stream: TextIO | None = None) -> None:
    """Send log messages to `stream`, by default stderr, as lines of this format, unless logging is configured already.

    Uncaught exceptions become such messages, too.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(LineFormatter(format_))
    logging.basicConfig(handlers=[handler], level=level)
    log_uncaught_exceptions()


def log_uncaught_exceptions() -> None:
    """Log uncaught exceptions instead of printing them."""
    sys.excepthook = _uncaught
    if threading.excepthook is threading.__excepthook__:  # pytest installs its own
        threading.excepthook = _uncaught_in_thread


def print_error(program: str, error: object, stream: TextIO | None = None) -> None:
    """Print an error of `program` to `stream`, by default stderr. Further lines of the error are indented."""
    first, *rest = str(error).strip().splitlines() or [""]
    text = "\n".join([f"{program}: {one_line(first)}", *(f"{_INDENT}{one_line(line)}" for line in rest)])
    print(text, file=stream if stream is not None else sys.stderr)


def _indented(text: str) -> str:
    # splitlines splits at every line end that a terminal or editor may recognize.
    return "\n".join(f"{_INDENT}{one_line(line)}" for line in text.splitlines())


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _log.critical("this process ends with an exception", exc_info=(kind, error, trace))


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and arguments.exc_type is not SystemExit:  # like Python's own hook
        _log.critical("a thread has ended with an exception", exc_info=arguments.exc_value)


def replace_unknown_characters() -> None:
    """Print `?` for characters that the encoding of standard output lacks. Called first by every command.

    Otherwise print raises UnicodeEncodeError. Python already does this for standard error.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def shown(value: float) -> str:
    """Format with one decimal, or three digits if small or huge: 475.2, -1,234.5, 19.3, 0.74, 0.0133, 2.5e+12."""
    return format(value, ",.1f" if 10 <= abs(value) < 1e9 else ".3g")
