"""The command `relaax`: missing libraries, interrupts during imports, versions and help."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from relaax import __version__
from relaax.bundled import bundled_names
from relaax.cli.app import app as relaax_app
from relaax.server.parameter_server.main import app as parameter_server_app
from relaax.server.replay_server.main import app as replay_server_app
from relaax.server.rlx_server.main import app as rlx_server_app
from support.processes import Processes, project_command
from support.programs import program

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # as if it were not installed
from relaax.cli.main import main
del sys.argv[1]
main()
"""


INTERRUPTED_WHILE_IMPORTING = """
import signal, sys, types
from relaax.cli import main

class Typer(types.ModuleType):
    def __getattr__(self, name):  # a library may replace the exception
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError(name)

sys.modules["typer"] = Typer("typer")
getattr(main, sys.argv[1])()
"""


@pytest.mark.parametrize("command", ["main", "parameter_server", "rlx_server"])
def test_interrupt_during_imports_is_silent(processes: Processes, command: str) -> None:
    running = processes.start_python(INTERRUPTED_WHILE_IMPORTING, command)
    assert running.wait(60) == 130, running.report()
    assert running.stderr == ""


@pytest.mark.parametrize("command", ["relaax", "relaax-parameter-server", "relaax-replay-server", "relaax-rlx-server"])
def test_every_command_prints_its_version(processes: Processes, command: str) -> None:
    running = processes.start(project_command(command), "--version")
    assert running.wait(60) == 0, running.report()
    assert running.lines == [f"relaax {__version__}, RLX 1, Python {platform.python_version()}"]


@pytest.mark.parametrize("app", [relaax_app, parameter_server_app, replay_server_app, rlx_server_app])
def test_version_option_needs_no_other_option(app: typer.Typer) -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output.startswith(f"relaax {__version__}, ")) == (0, True), done.output


@pytest.mark.parametrize("library", ["typer", "pydantic"])
def test_missing_library_is_named_with_the_install_command(processes: Processes, library: str) -> None:
    command = processes.start_python(WITHOUT, library, "version")
    assert command.wait(60) == 2, command.report()
    assert f"relaax: {library} is not installed; pip install 'relaax[server]'" in command.stderr
    assert "Traceback" not in command.stderr


def test_missing_own_module_suggests_no_installation(processes: Processes) -> None:
    command = processes.start_python(WITHOUT, "relaax.cli.run.command", "version")
    assert command.wait(60) == 1
    assert "relaax.cli.run.command" in command.stderr
    assert "pip install" not in command.stderr


def _commands(app: typer.Typer) -> Iterator[list[str]]:
    """Yield the words of every command and subcommand."""

    def walk(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        if hasattr(command, "list_commands"):
            context = command.make_context(words[-1] if words else "", [], resilient_parsing=True)
            for name in command.list_commands(context):
                yield from walk(command.get_command(context, name), [*words, name])

    yield from walk(typer.main.get_command(app), [])


@pytest.mark.parametrize(
    "app", [relaax_app, parameter_server_app, replay_server_app, rlx_server_app], ids=["relaax", "ps", "replay", "rlx"]
)
def test_every_command_accepts_h_for_help(app: typer.Typer) -> None:
    for words in _commands(app):
        short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
        assert short.exit_code == 0, (words, short.output)
        assert short.output == long.output
        assert short.output.startswith("Usage:")
        assert "-h, --help" in short.output


@pytest.mark.parametrize(
    ("family", "option"), [*((family, "-h") for family in bundled_names("environments")), ("OpenAI_Gym", "--help")]
)
def test_environment_programs_accept_h_for_help(family: str, option: str) -> None:
    done = program(family, option)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage:")
