"""The whole service learns: real servers, real environments, real sockets."""

from __future__ import annotations

import pytest

from support.run import Runs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cartpole_is_solved(runs: Runs, short: bool) -> None:
    """Random play returns 20; docs/results/cartpole.md has what other seeds needed."""
    target = 300 if short else 475
    run = runs.start("--clients", "4", "--target-return", str(target), "--seed", "11", "--no-progress")
    assert run.running.wait(280) == 0, run.running.report()
    summary = run.summary
    assert summary["status"] == "target_reached"
    assert summary["mean_return_100"] >= target
    assert summary["env_steps"] < 400_000
