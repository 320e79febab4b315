"""`relaax run --eval-every`: checkpoints are evaluated during training, and the best is chosen by evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from relaax.checkpoint import LocalStore
from relaax.checkpoint.evaluation import read_evaluation
from relaax.cli.checkpoints import catalogue
from support.processes import wait_until
from support.run import PATIENCE, SMALL, Runs

NO_TARGET = ("--set", "run.target_return=null")
EVALUATED = ("--eval-every", "200", "--eval-episodes", "2")


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/evaluation", "relaax/supervision")
def test_checkpoints_are_evaluated_during_training(runs: Runs) -> None:
    run = runs.start(*SMALL, *NO_TARGET, *EVALUATED, "--target-evaluation", "8", "--max-time", "120")
    assert run.running.wait(PATIENCE + 120) == 0, run.running.report()
    run.expect_nothing_left()
    summary = run.summary
    assert summary["status"] == "target_reached"
    assert 8 <= summary["evaluation"] <= 500
    store = LocalStore(run.directory / "checkpoints")
    entries = catalogue.entries(store)
    best = catalogue.best(entries)
    assert best is not None
    assert best.evaluation is not None
    found = read_evaluation(store, best.checkpoint_id)
    assert found is not None
    assert (found.episodes, found.mean) == (2, best.evaluation)
    events = EventAccumulator(str(run.directory / "metrics" / "evaluation"))
    events.Reload()
    curve = events.Scalars("evaluation/mean_return")
    assert curve[-1].value == summary["evaluation"]
    assert curve[-1].step >= 200


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/evaluation", "relaax/supervision")
def test_failed_evaluation_does_not_stop_training(runs: Runs, tmp_path: Path) -> None:
    program = tmp_path / "unplayable.py"
    program.write_text(
        "import sys\n"
        "if sys.argv[1] == 'local':\n"
        "    sys.exit(7)\n"
        "from relaax.client import command, run\n"
        "described = command.parser('unplayable', 'Runs.', 'an id')\n"
        "command.execute(described, lambda given: run(given.name, **command.settings(given)))\n",
        encoding="utf-8",
    )
    options = ("--set", f"run.environment={program}")
    run = runs.start(*SMALL, *NO_TARGET, *EVALUATED, *options, "--max-time", "60")
    wait_until(
        lambda: "the evaluation of checkpoint" in run.running.stderr, "the failed evaluation is reported", PATIENCE + 60
    )
    assert run.running.stop(timeout=60) == 130, run.running.report()
    run.expect_nothing_left()
    assert run.summary["evaluation"] is None
    assert run.summary["env_steps"] > 200
    assert run.summary["lost_steps"] == 0


def test_target_evaluation_without_evaluations_is_refused(runs: Runs) -> None:
    run = runs.start(*SMALL, "--target-evaluation", "8")
    assert run.running.wait(PATIENCE) == 2
    assert "target_evaluation needs evaluations: set eval_every, or omit" in run.running.stderr
