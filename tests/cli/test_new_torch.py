"""The algorithm of `relaax new algorithm --framework torch` learns, and meets the contracts of an agent."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from support.run import Runs

FOLDER = Path("~/.cache/relaax-torch").expanduser()
"""Where tests/support/install-torch installs PyTorch, which is too large for the environment of all tests."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.checks("relaax/cli/new", "relaax/algorithm_base", "relaax/server", "tests/support/install-torch"),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None and not (FOLDER / "torch").is_dir(),
        reason="PyTorch is not installed; tests/support/install-torch installs it",
    ),
]


@pytest.fixture(autouse=True)
def new_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the algorithm in an empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = CliRunner().invoke(app, ["new", "algorithm", "mine", "--framework", "torch"], prog_name="relaax")
    assert done.exit_code == 0, done.output


def test_agent_meets_its_contracts() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_training_reaches_its_target(runs: Runs, short: bool) -> None:
    target = 380 if short else 475
    options = ("--seed", "2", "--no-progress", "--target-return", str(target))
    run = runs.start(*options, config=Path("mine.yaml").resolve())
    assert run.running.wait(300) == 0, run.running.report()
    assert run.summary["mean_return_100"] >= target
