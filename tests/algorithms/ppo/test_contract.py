from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple, load_algorithm
from relaax.algorithm_base.testing import AgentCompliance

PPO = load_algorithm("ppo", Path())
VECTOR = Box(-1, 1, shape=(4,))
REAL = Box(-1, 1, shape=(2,))
MIXED = Dict({"move": Box([-1, 0], [1, np.inf]), "arms": Tuple([Discrete(3, start=-1), MultiBinary([2, 2])])})


def section(**keys: Any) -> dict[str, Any]:
    """Return a configuration whose minibatches are of unequal sizes."""
    return {"path": "ppo", "episode_len": 7, "epochs": 2, "minibatches": 4, "network": {"dense": [8]}} | keys


class TestPpoOnVectors(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(minibatches=2)
    observation_space = VECTOR
    action_space = Discrete(3)
    impossible_spaces = (
        (VECTOR, Box(0, 3, shape=(2,), dtype="int64")),
        (VECTOR, Tuple([Discrete(2), Box(0, 9, shape=(1,), dtype="uint8")])),
        (Discrete(20_000), Discrete(2)),
        (Box(0, 255, shape=(10_000, 10_000), dtype="uint8"), Discrete(2)),
    )


class TestPpoWithOverlap(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(overlap=True, target_kl=0.01, value_clipping=0.2, epochs=1, minibatches=1)
    observation_space = VECTOR
    action_space = MultiDiscrete([2, 3])


class TestPpoOnRealActions(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(normalize_observations=True, spherical=True, normalize_advantages=False)
    observation_space = VECTOR
    action_space = REAL


class TestPpoWithAnLstm(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(lstm=True, overlap=True, network={"dense": [8], "lstm_size": 4}, minibatches=2)
    observation_space = VECTOR
    action_space = MultiBinary([2, 2])


class TestPpoOnImages(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(
        history_len=2,
        subtract_mean_image=True,
        network={"dense": [8], "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    )
    observation_space = Box(0, 255, shape=(7, 9), dtype="uint8")
    action_space = Discrete(4, start=-1)


class TestPpoOnMixedActions(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(entropy_weights={"move": 0.5, "arms/1": 2}, normalize_rewards="standardize")
    observation_space = Dict({"where": Discrete(5, start=100), "camera": Box(0, 1, (2, 3))})
    action_space = MIXED
    impossible_spaces = ((VECTOR, Tuple([MIXED, Box(0, 9, (1,), dtype="int16")])),)


class TestPpoOnMixedActionsOfAnLstmOnImages(AgentCompliance):
    algorithm = PPO
    config_section: ClassVar = section(
        lstm=True,
        history_len=2,
        normalize_observations=True,
        network={"dense": [8], "lstm_size": 4, "convolutions": [{"filters": 2, "kernel": 3, "stride": 2}]},
    )
    observation_space = Dict({"camera": Box(0, 255, shape=(7, 9), dtype="uint8"), "gear": MultiDiscrete([2, 3])})
    action_space = Tuple([MIXED, MultiDiscrete([2, 4])])
