"""`--help` of all commands, at 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.server.learner import main as learner
from relaax.server.parameter_server import main as parameter_server
from relaax.server.replay_server import main as replay_server
from relaax.server.rlx_server import main as rlx_server
from relaax.server.tensorboard import main as tensorboard

PROGRAMS = {
    "relaax": app,
    "relaax-parameter-server": parameter_server.app,
    "relaax-replay-server": replay_server.app,
    "relaax-rlx-server": rlx_server.app,
    "relaax-learner": learner.app,
    "relaax-tensorboard": tensorboard.app,
}


def commands_of(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of all its subcommands."""
    yield words
    if hasattr(command, "list_commands"):
        with command.make_context(words[-1], [], resilient_parsing=True) as context:
            for name in command.list_commands(context):
                yield from commands_of(command.get_command(context, name), (*words, name))


COMMANDS = [words for name, one in PROGRAMS.items() for words in commands_of(typer.main.get_command(one), (name,))]


def help_of(program: str, *words: str) -> str:
    result = CliRunner().invoke(PROGRAMS[program], [*words, "--help"], prog_name=program, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_names_values_and_no_types(words: tuple[str, ...]) -> None:
    text = help_of(*words)
    assert not re.findall(r"<[\w|\[\] ]+>|\b(?:INTEGER|FLOAT|TEXT)\b", text)
    usage = text.split("\n\n")[0]
    assert not set("{}<>") & set(usage), usage


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_80_columns_and_cuts_no_sentence(words: tuple[str, ...]) -> None:
    for line in help_of(*words).splitlines():
        assert len(line) <= 80, line
        assert not line.endswith("...") or re.match("Usage: | +--", line), line


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("relaax run", r"Usage: relaax run \[OPTIONS\] \[?CONFIG\]?\n"),
        ("relaax run", r"--clients N "),
        ("relaax run", r"--run-dir DIR "),
        ("relaax run", r"--summary FILE "),
        ("relaax run", r"--on \[here\|ray\] "),
        ("relaax run", r"--set KEY=VALUE "),
        ("relaax suite", r"\[OPTIONS\] CONFIG NAME\.\.\.\n"),
        ("relaax plot", r"\[OPTIONS\] \[RUN\.\.\.\]\n"),
        ("relaax checkpoints copy", r"\[OPTIONS\] LOCATION TO \[ID\.\.\.\]\n"),
        ("relaax-rlx-server", r"--timeout N "),
        ("relaax-rlx-server", r"--parameter-server HOST:PORT,\.\.\.\n"),
        ("relaax-parameter-server", r"--aws-keys FILE "),
        ("relaax-parameter-server", r"--log-format \[text\|json\] "),
    ],
)
def test_values_have_the_names_that_users_expect(words: str, shown: str) -> None:
    assert re.search(shown, help_of(*words.split()))
