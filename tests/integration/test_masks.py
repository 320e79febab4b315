"""Action masks through real servers: training by valid actions, and the error for a mask that allows none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.client import Client, Failure, VectorClient, Worlds, run
from relaax.rlx import Box, Dict, Discrete, ErrorCode, MultiBinary
from support.service import started_service

pytestmark = pytest.mark.checks("relaax/algorithm_base", "relaax/server/rlx_server", "algorithms", "relaax/client")

ACTIONS = 5
SPACES: dict[str, Any] = {
    "observation_space": Dict({"seen": Box(-1, 1, (2,)), "action_mask": MultiBinary(ACTIONS)}),
    "action_space": Discrete(ACTIONS),
}


def states(mask: np.ndarray) -> dict[str, np.ndarray]:
    return {"seen": np.zeros((len(mask), 2), np.float32), "action_mask": mask.astype(np.int8)}


class Strict:
    """A world with episodes of six steps, and an error for an invalid action. The last mask allows nothing."""

    observation_space, action_space = SPACES["observation_space"], SPACES["action_space"]

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def restart(self) -> Any:
        self._steps = 0
        return self._observe()

    def do(self, action: int) -> tuple[Any, float, bool, bool]:
        assert self._mask[action], f"action {action} is not valid"
        self._steps += 1
        return self._observe(), 1.0, False, self._steps == 6

    def _observe(self) -> Any:
        self._mask = self._rng.permutation(ACTIONS) < 2
        if self._steps == 6:
            self._mask[:] = False
        return {
            "seen": self._rng.normal(size=2).clip(-1, 1).astype(np.float32),
            "action_mask": self._mask.astype(np.int8),
        }


def test_server_continues_after_a_mask_of_nothing(tmp_path: Path) -> None:
    with started_service(tmp_path, network={"dense": [8]}) as service:
        summary = run(Worlds(Strict, 3, seed=1), service.address, steps=300)
        assert summary.mean_return == 6
        client = VectorClient(service.address, environments=2, autoreset="next_step", **SPACES)
        mask, none, ended = np.eye(ACTIONS)[[1, 3]], np.zeros((1, ACTIONS)), np.array([False, True])
        with pytest.raises(Failure) as refused, client:
            assert client.init(states(mask)).tolist() == [1, 3]
            # The action that follows the end of environment 1 is ignored: its mask may allow nothing.
            client.step(np.zeros(2), states(np.concatenate([mask[:1], none])), ~ended & ended, ended)
            client.step(np.zeros(2), states(mask), first=ended)
            client.step(np.zeros(2), states(np.concatenate([none, mask[1:]])))
        assert refused.value.code is ErrorCode.INVALID_VALUE
        assert "action_mask of environment 0 allows no action at step 4 over all episodes" in str(refused.value)
        with Client(service.address, **SPACES) as again:
            one = {"seen": np.zeros(2, np.float32), "action_mask": np.eye(ACTIONS, dtype=np.int8)[2]}
            assert again.init(one) == 2
            again.reset(0.0)
