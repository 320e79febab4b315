"""How `relaax doctor` prints its findings: colors on a terminal, and a closing summary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.cli.doctor.command import line, summary
from relaax.cli.doctor.finding import Finding, ok, warning, wrong

FINE = [("fork", ok("fine")), ("ports", ok("free")), ("ports", ok("free"))]
LATE, BROKEN = ("clock", warning("it is late", "set it")), ("store", wrong("it is broken", "repair it"))


@pytest.mark.parametrize(
    ("found", "closing"),
    [
        (FINE, "ready: 2 checks passed"),
        (FINE[:1], "ready: 1 check passed"),
        ([*FINE, LATE], "ready: 2 checks passed; 1 warning: clock"),
        ([*FINE, LATE, LATE, ("ports", LATE[1])], "ready: 1 check passed; 3 warnings: clock, ports"),
        ([*FINE, BROKEN], "1 problem: store"),
        ([*FINE, BROKEN, ("ports", BROKEN[1]), LATE], "2 problems: store, ports; 1 warning: clock"),
    ],
)
def test_closing_line_counts_checks_and_names_bad_ones(found: list[tuple[str, Finding]], closing: str) -> None:
    assert summary(found) == closing


def test_remedy_follows_the_fact_as_its_own_sentence() -> None:
    assert line("x", wrong("it is broken", "repair it")) == "wrong    x: it is broken. Repair it"
    assert line("x", wrong("did you mean 'y'?", "repair it")) == "wrong    x: did you mean 'y'? Repair it"


@pytest.fixture
def misspelt(tmp_path: Path) -> str:
    path = tmp_path / "experiment.yaml"
    path.write_text("algorithm: {path: da3c, entropy_bta: 1}\n")
    return str(path)


def printed(config: str, **variables: str | None) -> str:
    result = CliRunner().invoke(app, ["doctor", config], env={"NO_COLOR": None, "TERM": "xterm", **variables})
    assert result.exit_code == 1
    return result.stdout


def test_doctor_in_a_pipe_prints_a_summary_without_color(misspelt: str) -> None:
    text = printed(misspelt)
    assert text.startswith("wrong    configuration: ")
    assert text.endswith("\n\n1 problem: configuration\n")
    assert "\x1b" not in text


def test_doctor_on_a_terminal_colors_severities(misspelt: str) -> None:
    text = printed(misspelt, FORCE_COLOR="1")
    assert text.startswith("\x1b[31mwrong\x1b[0m    configuration: ")
    assert re.search("^\x1b\\[32mok\x1b\\[0m       versions: ", text, re.MULTILINE)
    assert text.endswith("\x1b[31m1 problem: configuration\x1b[0m\n")


def test_no_color_is_respected_on_a_terminal(misspelt: str) -> None:
    assert "\x1b" not in printed(misspelt, FORCE_COLOR="1", NO_COLOR="1")
