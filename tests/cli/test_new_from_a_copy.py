"""A copy of a bundled algorithm trains from the folder that it was written to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from support.run import Runs


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/new", "algorithms")
@pytest.mark.parametrize("algorithm", ["da3c", "async_q"])
def test_copied_algorithm_trains(algorithm: str, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy of async_q includes the modules that it shares with other value-based algorithms."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    written = CliRunner().invoke(app, ["new", "algorithm", "renamed", "--from", algorithm])
    assert written.exit_code == 0, written.stderr

    targets = ("--set", "run.target_return=null", "--set", "run.target_evaluation=null")
    options = ("--clients", "1", "--max-steps", "1000", *targets, "--no-progress")
    run = runs.start(*options, config=Path("renamed.yaml").resolve())
    assert run.running.wait(240) == 0, run.running.report()
    assert run.summary["status"] == "max_steps"
    assert run.summary["updates"] > 0
    for server in ("parameter-server", "rlx-server"):
        assert f"algorithm renamed is loaded from {tmp_path / 'empty' / 'renamed'}" in run.log(server)
