"""A training with replay memory survives any two or three processes that are killed within the same second."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from support.replay_soak import COUNTS, ReplaySoak, ReplaySoakPlan
from support.run import Runs

pytestmark = pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")

PARTS = ("parameter-server", "replay-server", "rlx-server", "learner", "client")


def combinations(size: int) -> list[tuple[str, ...]]:
    """Return every combination of `size` kinds of processes."""
    choices = itertools.combinations_with_replacement(PARTS, size)
    return [storm for storm in choices if all(count <= COUNTS[part] for part, count in Counter(storm).items())]


def expect_survived(storms: list[tuple[str, ...]], runs: Runs, folder: Path) -> None:
    account = ReplaySoak(ReplaySoakPlan(storms=tuple(storms)), runs, folder).run()
    assert account.violations == []
    assert account.faults == Counter(itertools.chain(*storms))
    assert len(account.calms) == len(storms) + 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_run_survives_any_two_processes_killed_together(runs: Runs, tmp_path: Path, short: bool) -> None:
    first = [("learner", "parameter-server"), ("parameter-server", "rlx-server"), ("replay-server", "learner")]
    storms = first if short else combinations(2)
    expect_survived(storms, runs, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_run_survives_any_three_processes_killed_together(runs: Runs, tmp_path: Path, short: bool) -> None:
    first = [("parameter-server", "replay-server", "learner")]
    expect_survived(first if short else combinations(3), runs, tmp_path)
