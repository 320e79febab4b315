"""Gorila and Ape-X learn CartPole with the settings of their configurations, in the process of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import load_algorithm
from relaax.cli.run.plan import make_plan
from support.gym_training import GymnasiumTraining

pytestmark = pytest.mark.checks(
    "algorithms/gorila", "algorithms/apex", "relaax/algorithm_base", "relaax/nn", "relaax/optim", "relaax/replay"
)

ENVIRONMENTS = 8


def trained(configuration: str, env_steps: int, target: float, **keys: Any) -> float:
    """Evaluate every 5,000 steps. Return the first greedy return of at least `target`, or else the best one."""
    section = dict(make_plan(configuration, []).configuration.algorithm)
    algorithm = load_algorithm(Path(section.pop("path")).name, Path())
    training = GymnasiumTraining(algorithm, section | {"seed": 11} | keys, "CartPole-v1", ENVIRONMENTS)
    best = 0.0
    while best < target and training.env_steps < env_steps:
        training.run(training.env_steps + 5_000)
        best = max(best, training.greedy_return(10))
    return best


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize("configuration", ["gorila_gym_cartpole", "apex_gym_cartpole"])
def test_replay_methods_learn_cartpole(configuration: str) -> None:
    """Random play returns 20."""
    assert trained(configuration, 30_000, 150) >= 150


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "configuration", ["gorila_gym_cartpole", "gorila_distributed_gym_cartpole", "apex_gym_cartpole"]
)
def test_replay_methods_solve_cartpole(configuration: str, short: bool) -> None:
    if short and configuration != "gorila_distributed_gym_cartpole":
        pytest.skip("long test; test_replay_methods_learn_cartpole trains with the same settings")
    target = 250 if short else 475
    assert trained(configuration, 200_000, target) >= target
