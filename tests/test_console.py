"""Output of commands: text from a peer or a file cannot begin a line on stderr, and numbers are short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from relaax import rlx
from relaax.console import shown
from support.processes import Processes, project_command
from support.programs import program
from support.rlx_peer import RlxPeer, refuse

ROOT = Path(__file__).resolve().parent.parent
FORGED = "2026-01-01 ERROR forged"
TEXT = f"no\n{FORGED}\r\n{FORGED}\u2028{FORGED}"

PROGRAM = """
import logging, sys, threading
from relaax.console import log_to_stderr, print_error
from relaax.server.command.logs import configure_logging
kind, text = sys.argv[1:]
if kind == "server":
    configure_logging("INFO")
else:
    log_to_stderr("relaax some: %(message)s")
print_error("relaax some", text)
logging.getLogger("relaax.some").error("%s", text)
try:
    raise ValueError(text)
except ValueError:
    logging.getLogger("relaax.some").exception("it failed", stack_info=True)

def fail():
    raise RuntimeError(text)

for target in (sys.exit, fail):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
fail()
"""


def has_forged_line(text: str) -> bool:
    return any(line.startswith(FORGED) for line in text.splitlines())


@pytest.mark.parametrize("kind", ["server", "command"])
def test_logged_text_and_exceptions_cannot_forge_log_lines(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, kind, TEXT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"no\\n{FORGED}\\r\\n{FORGED}\\u2028{FORGED}\n" in done.stderr
    assert done.stderr.count("RuntimeError: no") == 2
    assert "SystemExit" not in done.stderr, "Python ignores it in a thread"
    assert not has_forged_line(done.stderr)


def test_client_prints_server_message_in_one_line() -> None:
    scripts = [refuse(code, TEXT) for code in (rlx.ErrorCode.UNAVAILABLE, rlx.ErrorCode.UNAUTHENTICATED)]
    with RlxPeer(*scripts) as peer:
        done = program("OpenAI_Gym", peer.address, "CartPole-v1", "--log-level", "info")
    assert done.returncode == 2
    forged = [line for line in done.stderr.splitlines() if FORGED in line]
    assert len(forged) == 2, done.stderr
    assert not has_forged_line(done.stderr)


def test_command_prints_name_from_file_in_one_line(processes: Processes, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f'"some\\n{FORGED}": 1\n')
    command = processes.start(project_command("relaax"), "run", str(file))
    assert command.wait(60.0) == 2
    assert FORGED in command.stderr
    assert not has_forged_line(command.stderr)


def test_logging_is_configured_in_one_place() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "relaax").rglob("*.py")
        if re.search(r"\bbasicConfig\(|\blogging\.Formatter\b", path.read_text("utf-8"))
    }
    assert found == {"relaax/console.py", "relaax/server/command/logs.py"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.74, "0.74"),
        (0.7449, "0.745"),
        (-0.0133, "-0.0133"),
        (3.25, "3.25"),
        (9.999, "10"),
        (19.33, "19.3"),
        (475.15, "475.1"),
        (-1234.5, "-1,234.5"),
        (-2.5e12, "-2.5e+12"),
    ],
)
def test_numbers_are_shown_with_three_digits_or_one_decimal(value: float, text: str) -> None:
    assert shown(value) == text
