from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest

from relaax.console import LineFormatter
from relaax.server.command.logs import JsonFormatter

EVIL = "first\r\n2026-01-01 00:00:00,000 ERROR   [1] relaax: second\x1b[2J\u2028third\ttab"

PROGRAM = """
import logging, sys, threading, warnings
from relaax.server.command.logs import configure_logging
configure_logging("INFO", sys.argv[1])
logging.getLogger("relaax.some").info("played %s\\n%d", "boxing", 3)
logging.getLogger("relaax.some").debug("not logged")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("relaax.some").exception("the agent failed")
warnings.warn("old and new")
thread = threading.Thread(target=lambda: [][1])
thread.start()
thread.join()
raise RuntimeError("at last")
"""


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("relaax.here", logging.WARNING, __file__, 1, message, arguments, None)


def run_program(log_format: str) -> tuple[int, str]:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr


def test_json_log_is_one_object_per_line() -> None:
    line = JsonFormatter().format(record("refused %s", EVIL))
    assert line.isascii() and line.isprintable()
    entry = json.loads(line)
    assert entry["message"] == f"refused {EVIL}"
    assert (entry["level"], entry["logger"]) == ("WARNING", "relaax.here")
    assert datetime.fromisoformat(entry["time"]).utcoffset() is not None


def test_text_log_is_one_line_per_message() -> None:
    line = LineFormatter("%(asctime)s %(name)s: %(message)s").format(record("refused %s", EVIL))
    assert line.splitlines() == [line]
    assert "first\\r\\n2026" in line and "\\x1b[2J" in line and "third\ttab" in line


def test_traceback_lines_are_indented_and_escaped() -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        failed = logging.LogRecord("relaax.here", logging.ERROR, __file__, 1, "it failed", (), sys.exc_info())
    first, *trace = LineFormatter("%(asctime)s %(name)s: %(message)s").format(failed).splitlines()
    assert first.endswith("relaax.here: it failed")
    assert all(line.startswith("    ") for line in trace)
    assert "\x1b" not in "".join(trace)
    assert any("relaax: second\\x1b[2J" in line for line in trace)


def test_all_log_output_of_a_process_is_json() -> None:
    code, stderr = run_program("json")
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert code == 1
    assert [line["message"].splitlines()[0] for line in lines if line["logger"] != "py.warnings"] == [
        "played boxing",
        "the agent failed",
        "a thread has ended with an exception",
        "this process ends with an exception",
    ]
    assert [line["exception"].splitlines()[-1] for line in lines if "exception" in line] == [
        "ZeroDivisionError: division by zero",
        "IndexError: list index out of range",
        "RuntimeError: at last",
    ]
    (warning,) = [line for line in lines if line["logger"] == "py.warnings"]
    assert "old and new" in warning["message"]
    assert len({line["process"] for line in lines}) == 1


def test_text_log_has_messages_and_tracebacks() -> None:
    code, stderr = run_program("text")
    assert code == 1
    assert "relaax.some: played boxing\\n3\n" in stderr
    assert "relaax.some: the agent failed\n    Traceback (most recent call last):\n" in stderr
    assert "not logged" not in stderr


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_formatting_does_not_change_the_record(log_format: str) -> None:
    formatter = JsonFormatter() if log_format == "json" else LineFormatter("%(asctime)s %(name)s: %(message)s")
    one = record("a\nb %d", 1)
    formatter.format(one)
    assert one.getMessage() == "a\nb 1"
