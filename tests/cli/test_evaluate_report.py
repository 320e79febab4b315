"""The result as `relaax eval` prints it."""

from __future__ import annotations

from typing import Any

import pytest

from relaax.evaluation import report

RESULT = {
    "environment": "courier:Courier",
    "checkpoint": "00000001-500-f1",
    "global_step": 500,
    "protocol": {"name": "none"},
    "seed": 0,
    "episodes": 30,
    "mean": 0.2,
    "std": 1.0,
    "interval_95": [-0.2, 0.6],
    "median": 0.3,
    "min": -1.2,
    "max": 1.5,
    "max_episode_steps": 100,
    "cut_off": 0,
    "steps": 100,
    "frames": 100,
    "returns": [],
}


@pytest.mark.parametrize(
    ("greedy", "trained", "is_explained"),
    [(True, 1.21, True), (True, 0.5, False), (True, None, False), (False, 1.21, False), (None, 1.21, False)],
)
def test_greedy_score_below_training_is_explained(
    greedy: bool | None, trained: float | None, is_explained: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    result: dict[str, Any] = {**RESULT, "greedy": greedy, "training_mean_return": trained}
    report.print_result(result)
    shown = capsys.readouterr().out
    assert ("training had a mean return of 1.21 in its last 100 episodes" in shown) is is_explained
    assert ("--sample" in shown) is is_explained


@pytest.mark.parametrize(
    ("returns", "row"),
    [([1.0, -1.0, 1.0, 0.0], "returns 1: 50.0 %, 0: 25.0 %, -1: 25.0 %"), ([500.0] * 4, None), ([1, 2, 3, 4], None)],
)
def test_shares_of_few_different_returns_are_printed(
    returns: list[float], row: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    report.print_result({**RESULT, "greedy": None, "training_mean_return": None, "episodes": 4, "returns": returns})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("returns")] == ([] if row is None else [row])
