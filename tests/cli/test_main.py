"""The command `relaax` where something is missing, and what ends commands while they are imported."""

from __future__ import annotations

import pytest

from support.processes import Processes

WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None  # as where it is not installed
from relaax.cli.main import main
del sys.argv[1]
main()
"""


INTERRUPTED_WHILE_IMPORTING = """
import signal, sys, types
from relaax.cli import main

class Typer(types.ModuleType):
    def __getattr__(self, name):  # whatever a library makes of the exception
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError(name)

sys.modules["typer"] = Typer("typer")
getattr(main, sys.argv[1])()
"""


@pytest.mark.parametrize("command", ["main", "parameter_server", "rlx_server"])
def test_an_interrupt_while_libraries_are_imported_is_silent(processes: Processes, command: str) -> None:
    running = processes.start_python(INTERRUPTED_WHILE_IMPORTING, command)
    assert running.wait(60) == 130, running.report()
    assert running.stderr == ""


@pytest.mark.parametrize("library", ["typer", "pydantic"])
def test_a_library_that_is_not_installed_is_named_with_the_way_to_get_it(processes: Processes, library: str) -> None:
    command = processes.start_python(WITHOUT, library, "version")
    assert command.wait(60) == 2, command.report()
    assert f"relaax: {library} is not installed; pip install 'relaax[server]'" in command.stderr
    assert "Traceback" not in command.stderr


def test_a_module_of_our_own_that_is_missing_is_no_matter_of_installing(processes: Processes) -> None:
    command = processes.start_python(WITHOUT, "relaax.cli.run.command", "version")
    assert command.wait(60) == 1
    assert "relaax.cli.run.command" in command.stderr
    assert "pip install" not in command.stderr
