"""Training with Dict observations and MultiDiscrete actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from relaax.client import Worlds, run
from support.service import started_service

pytestmark = pytest.mark.checks("relaax/algorithm_base", "relaax/rlx", "algorithms", "relaax/server/rlx_server")

SIDE, EPISODE = 16, 4
FIRST = np.array([[5], [-1]])  # first value of each choice


class TwoSigns:
    """A task whose observation is an image with numbers, and whose action is two choices.

    A bright spot is in the upper or in the lower half of the image, and a number is negative or positive. The second
    choice must have its larger value if the number is positive. The first choice must have its larger value if either
    the number is positive or the spot is in the lower half, but not both. It needs both parts of the observation.
    """

    observation_space = spaces.Dict(
        {"speed": spaces.Box(-np.inf, np.inf, (2,)), "camera": spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)}
    )
    action_space = spaces.MultiDiscrete([[2], [2]], start=FIRST)

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def restart(self) -> Any:
        self._steps = 0
        return self._observe()

    def do(self, action: Any) -> tuple[Any, float, bool, bool]:
        assert action.shape == (2, 1) and (action >= FIRST).all() and (action < FIRST + 2).all(), action
        low, positive = self._signs
        right = (action - FIRST).reshape(-1) == (low ^ positive, positive)
        self._steps += 1
        return self._observe(), float(right.mean()), self._steps == EPISODE, False

    def _observe(self) -> Any:
        self._signs = low, positive = self._rng.integers(0, 2, 2)
        camera = self._rng.integers(0, 30, (SIDE, SIDE, 1)).astype(np.uint8)
        row, column = self._rng.integers((SIDE // 2 * low, 0), (SIDE // 2 * (1 + low) - 4, SIDE - 4))
        camera[row : row + 4, column : column + 4] += np.uint8(200)
        return {"camera": camera, "speed": np.array([2 * positive - 1, self._rng.normal()], np.float32)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dict_observations_and_two_choices_are_learned(tmp_path: Path) -> None:
    """In an episode of 4 steps, random actions return 2, and actions that use only the number return 3."""
    keys: dict[str, Any] = {
        "network": {"dense": [32]},
        "history_len": 1,
        "rewards_gamma": 0.0,
        "normalize_rewards": None,
        "initial_learning_rate": 0.005,
        "entropy_beta": 0.02,
    }
    with started_service(tmp_path, **keys) as service:
        for part in range(15):
            run(Worlds(TwoSigns, 16, seed=100 * part), service.address, steps=8_000, seed=part)
            if service.wait_for_no_workers().mean_return_100 > 3.7:
                break
        assert service.status.mean_return_100 > 3.7
