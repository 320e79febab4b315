"""The algorithm of docs/replay.md learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, StepResult, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm
from support.pages import DOCS, block

SPACES = Box(-1, 1, shape=(3,)), Discrete(2, start=5)
ENVIRONMENTS, STEPS = 4, 400


@pytest.fixture
def bandit(tmp_path: Path) -> Algorithm:
    (tmp_path / "bandit.py").write_text(block(DOCS / "replay.md", "bandit.py"), encoding="utf-8")
    return load_algorithm("bandit.py", tmp_path)


def outcome(observations: np.ndarray, rewards: np.ndarray, first: np.ndarray) -> StepResult:
    nothing = np.zeros(ENVIRONMENTS, np.bool_)
    return StepResult(rewards, [observations], nothing, nothing, first)


def test_bandit_of_page_learns_best_action(bandit: Algorithm) -> None:
    """Steps that only reset are not stored. Environment 3 has only such steps, with wrong rewards."""
    parameters = FakeParameters(np.zeros(6, np.float32), learning_rate=1.0)
    config = bandit.configure({"path": "bandit.py"})
    agent, _ = make_agent(bandit, config, *SPACES, environments=ENVIRONMENTS, parameters=parameters)
    random = np.random.default_rng(1)
    void = np.arange(ENVIRONMENTS) == 3

    def contexts() -> np.ndarray:
        return random.uniform(-1, 1, (ENVIRONMENTS, 3)).astype(np.float32)

    seen = contexts()
    (actions,) = agent.reset([seen])
    right = []
    for _ in range(STEPS):
        assert set(actions.tolist()) <= {5, 6}
        right.append(actions == 5 + (seen[:, 1] > 0))
        rewards = np.where(actions == 6, seen[:, 1], -seen[:, 1]) * np.where(void, -9, 1)
        agent.learn()
        seen = contexts()
        (actions,) = agent.step(outcome(seen, rewards.astype(np.float64), void))
    agent.close()
    assert sum(push.env_steps for push in parameters.pushes) == STEPS * 3
    assert sum(push.gradient is not None for push in parameters.pushes) > 100
    assert np.mean(right[-100:]) > 0.85, "one action in ten is random"
    assert np.mean(right[:16]) < 0.85, "the first actions are random, before learning starts"


def test_bandit_in_exploit_mode_pushes_nothing(bandit: Algorithm) -> None:
    config = bandit.configure({"path": "bandit.py"})
    agent, parameters = make_agent(bandit, config, *SPACES, environments=ENVIRONMENTS, exploit=True)
    agent.reset([np.zeros((ENVIRONMENTS, 3), np.float32)])
    nothing = np.zeros(ENVIRONMENTS, np.bool_)
    (actions,) = agent.step(outcome(np.ones((ENVIRONMENTS, 3), np.float32), np.zeros(ENVIRONMENTS), nothing))
    assert set(actions.tolist()) <= {5, 6}
    assert parameters.pushes == []


def test_bandit_refuses_unsupported_observations(bandit: Algorithm) -> None:
    config = bandit.configure({"path": "bandit.py"})
    assert bandit.Agent.refusal(config, *SPACES) is None
    assert "bandit wants a Box of one axis" in (bandit.Agent.refusal(config, SPACES[1], SPACES[1]) or "")
