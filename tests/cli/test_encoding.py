"""Commands print `?` for characters that the encoding of their standard output lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes import Processes

ASCII = {"PYTHONIOENCODING": "ascii"}


def test_page_is_printed_in_any_encoding(processes: Processes) -> None:
    running = processes.start("relaax", "docs", "tune", env=ASCII)
    assert running.wait(120) == 0, running.report()


@pytest.mark.slow
@pytest.mark.checks("relaax/console.py", "relaax/cli/run")
def test_run_continues_if_its_progress_cannot_be_encoded(processes: Processes, tmp_path: Path) -> None:
    running = processes.start(
        *("relaax", "run", "da3c_gym_cartpole", "--run-dir", tmp_path / "laufübung", "--max-steps", "2000"), env=ASCII
    )
    assert running.wait(180) == 3, running.report()
    assert f"run directory {tmp_path}/lauf?bung" in running.lines, running.report()


def test_environment_program_prints_in_any_encoding(processes: Processes) -> None:
    code = "from relaax.client.command import execute, parser; execute(parser('x', '\\u2026', None), None, ['--help'])"
    running = processes.start_python(code, env=ASCII)
    assert running.wait(60) == 0, running.report()
    assert "?" in running.lines
