"""Completion in real shells, and the libraries that it loads."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.bundled import bundled_names
from relaax.cli import completion
from relaax.cli.app import COMMANDS, app
from relaax.cli.run.without_file import named_environment
from support.processes import Processes

pytestmark = pytest.mark.checks("relaax/cli")

PATIENCE = 60.0
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(relaax --show-completion)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u -D; eval "$(relaax --show-completion)"'),
    # fish needs a controlling terminal.
    "fish": (["setsid", "--ctty", "fish", "--no-config", "-i"], "relaax --show-completion | source"),
}
SLOW = {"numpy", "tensorflow", "grpc", "google.protobuf", "matplotlib", "yaml", "ray"}
LOADING = """
import sys
from relaax.cli.app import COMMANDS, _load
for command in COMMANDS:
    _load(command)
print(len(COMMANDS), "loaded", *set(sys.argv[1:]) & sys.modules.keys())
"""


class Terminal:
    """A shell whose keyboard and screen are a pseudo-terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> None:
        """Read new output until it contains `text`."""
        deadline = time.monotonic() + PATIENCE
        seen = ""
        while text not in seen:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not shown: {self.screen!r}"
            seen += os.read(self._descriptor, 65536).decode(errors="replace")
            self.screen = seen


@contextmanager
def terminal(command: list[str], folder: Path) -> Iterator[Terminal]:
    """Run a shell in a folder, with `relaax` of this environment in its PATH."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    keyboard, screen = pty.openpty()
    environ = {**os.environ, "PATH": path, "HOME": str(folder), "TERM": "xterm", "COLUMNS": "80"}
    shell = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, env=environ, cwd=folder)
    os.close(screen)
    try:
        yield Terminal(keyboard)
    finally:
        os.close(keyboard)
        shell.kill()
        shell.wait()


@pytest.mark.parametrize(
    "name", ["bash", *(pytest.param(name, marks=pytest.mark.slow) for name in SHELLS if name != "bash")]
)
def test_tab_completes_a_configuration(name: str, tmp_path: Path) -> None:
    command, source = SHELLS[name]
    if lacking := [program for program in {command[0], name} if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    with terminal(command, tmp_path) as shell:
        shell.type(f"{source}; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type("relaax run da3c_gym_ac\t")
        shell.wait_for("robot")


def completed(*words: str) -> list[str]:
    """Return the words that bash would offer for the word under the cursor."""
    variables = {
        "_RELAAX_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["relaax", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = CliRunner().invoke(app, [], env=variables, prog_name="relaax")
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_commands_are_completed() -> None:
    assert completed("") == [*COMMANDS, "version"]
    assert completed("c") == ["check", "clone", "cluster", "checkpoints", "conformance"]


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_completed(command: str) -> None:
    assert "--help" in completed(command, "--")


def test_completion_loads_no_slow_library(processes: Processes) -> None:
    """Completion loads each command to read its options."""
    command = processes.start_python(LOADING, *SLOW)
    assert command.wait(PATIENCE) == 0, command.report()
    assert command.lines == [f"{len(COMMANDS)} loaded"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "gorila_gym"], ["gorila_gym_cartpole", "gorila_gym_lunarlander"]),
        (["run", "--algorithm", "da3c"], ["da3c", "da3c_cont"]),
        (["run", "--algorithm", "da3c", "--environment", "Pen"], ["Pendulum-v1"]),
        (["list", "a"], ["algorithms"]),
        (["run", "--algorithm", "p"], ["ppo"]),
        (["docs", "which"], ["which-algorithm"]),
    ],
)
def test_values_are_completed(words: list[str], found: list[str]) -> None:
    assert completed(*words) == found


def test_own_files_and_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "mine[1].yaml").touch()
    assert completion.configurations("mine[") == ["mine[1].yaml"]
    assert completion.configurations("/") == []
    assert completion.runs("") == completion.configurations_and_runs("runs/") == ["runs/mine"]
    assert completion.algorithms_and_configurations("gorila") == [
        "gorila",
        *(name for name in bundled_names("config", ".yaml") if name.startswith("gorila")),
    ]


@pytest.mark.parametrize("text", completion.environments(""))
def test_each_completed_environment_is_bundled(text: str) -> None:
    assert named_environment(text).program in bundled_names("environments")
