"""A short one-file DQN: it complies with the contract of agents, and solves CartPole with the whole service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance
from support.run import Runs

pytestmark = pytest.mark.checks(
    "tests/learning/dqn.py", "relaax/algorithm_base", "relaax/replay", "relaax/server/learner"
)

DQN = Path(__file__).with_name("dqn.py")


def test_dqn_has_at_most_150_lines() -> None:
    assert len(DQN.read_text().splitlines()) <= 150


class TestDqn(AgentCompliance):
    algorithm = load_algorithm(str(DQN), DQN.parent)
    config_section: ClassVar = {"path": str(DQN), "replay_start": 8, "batch_size": 8, "network": {"dense": [5]}}
    observation_space = Box(-1, 1, shape=(4,))
    action_space = Discrete(3, start=1)
    impossible_spaces = ((observation_space, Box(-1, 1, shape=(1,))),)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dqn_solves_cartpole(runs: Runs, short: bool, tmp_path: Path) -> None:
    """Random play returns 20."""
    document = {
        "relaax-run": {"environment": "OpenAI_Gym", "name": "CartPole-v1", "clients": 1, "envs-per-client": 4},
        "algorithm": {
            "path": str(DQN),
            "optimizer": "adam",
            "initial_learning_rate": 5e-4,
            "anneal_learning_rate": False,
        },
    }
    config = tmp_path / "dqn.yaml"
    config.write_text(json.dumps(document))  # JSON is YAML
    target = "150" if short else "475"
    run = runs.start("--target-return", target, "--max-steps", "4e5", "--seed", "1", "--no-progress", config=config)
    assert run.running.wait(560) == 0, run.running.report()
    assert run.summary["status"] == "target_reached"
