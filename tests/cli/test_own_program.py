"""Messages about environment programs that do not connect, and about files that are not environment programs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from relaax.bundled import bundled_folder
from relaax.cli import check
from relaax.cli.app import app
from relaax.cli.run.environment_check import FirstConnection, environment_class, never_connected_message

BUNDLED = bundled_folder("environments") / "OpenAI_Gym" / "main.py"
CLIENT: Any = SimpleNamespace(log_tail=lambda lines: "  refused\n", log="logs/client-0.log")


def first_connection(main: Path, seconds: float = 0.0) -> FirstConnection:
    plan: Any = SimpleNamespace(environment_main=main)
    return FirstConnection(plan, seconds)


def test_missing_connection_names_argument_and_log_once() -> None:
    connection = first_connection(Path("world.py"))
    assert connection.overdue(False, CLIENT, "localhost:7001") == (
        "no environment has connected within 0 s; world.py must connect to its first argument (sys.argv[1] in Python), "
        "localhost:7001; it printed: refused; see logs/client-0.log"
    )
    assert connection.overdue(False, CLIENT, "localhost:7001") is None


def test_bundled_program_without_connection_has_only_its_log() -> None:
    found = first_connection(BUNDLED).overdue(False, CLIENT, "localhost:7001")
    assert found == "no environment has connected within 0 s; it printed: refused; see logs/client-0.log"


def test_connection_in_time_needs_no_message() -> None:
    assert first_connection(BUNDLED, 60.0).overdue(False, CLIENT, "localhost:7001") is None
    connection = first_connection(BUNDLED)
    assert connection.overdue(True, CLIENT, "localhost:7001") is None
    assert connection.overdue(False, CLIENT, "localhost:7001") is None


@pytest.mark.parametrize("base", ["gymnasium.Env", "gym.Env[int, int]", "Env"])
def test_environment_class_of_a_file_is_suggested(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("courier.py").write_text(f"class Other: ...\nclass Courier({base}): ...\n")
    Path("program.py").write_text("class Environment: ...\n")
    assert environment_class(Path("courier.py")) == "courier:Courier"
    assert never_connected_message(tmp_path / "courier.py").endswith(
        "HOST:PORT; for the class in it, use --environment courier:Courier"
    )
    assert environment_class(Path("program.py")) is None
    assert never_connected_message(Path("program.py")).endswith("a program connects to its first argument, HOST:PORT")
    monkeypatch.chdir("/")
    assert environment_class(tmp_path / "courier.py") is None, "its module could not be imported"


def test_program_that_ignores_check_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "_REPORT_SECONDS", 0.0)
    monkeypatch.setattr(check, "_algorithms", lambda: [])
    Path("courier.py").write_text("import gymnasium\nclass Courier(gymnasium.Env): ...\n")
    result = CliRunner().invoke(app, ["check", "courier.py"])
    assert result.exit_code == 2
    output = result.output + capfd.readouterr().err
    assert "a program must accept `check` in place of its first argument" in output
    assert "it is not an environment program; its class is courier:Courier" in output
