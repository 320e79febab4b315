"""The algorithm of `relaax new algorithm --framework torch` learns, and meets the contracts of an agent."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app

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
    done = _python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py")
    assert done.returncode == 0, done.stdout


def test_training_reaches_its_target(short: bool) -> None:
    target = 380 if short else 475
    options = ("--seed", "2", "--no-progress", "--target-return", str(target), "--run-dir", "run")
    done = _python("-m", "relaax.cli.main", "run", "mine.yaml", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("run/summary.json").read_text("utf-8"))["mean_return_100"] >= target


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the working directory, in a process that is not forked: it needs the variable PYTHONPATH."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300)
