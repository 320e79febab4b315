"""Checkpoints of da3c in a folder: each takes one action in all states, or has random parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Box, Discrete, Space
from relaax.algorithm_base.network import NetworkConfig, network_for
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.hosting.fingerprint import fingerprint
from support.policy_files import bundled

KEYS = {"network": {"dense": [4]}, "normalize_rewards": None}


class Checkpoints:
    """A folder of checkpoints of two shards. `keys`: of the algorithm."""

    def __init__(self, folder: Path, actions: int = 2, observation_space: Space | None = None, **keys: object) -> None:
        algorithm = bundled("da3c")
        config = algorithm.configure({"path": "da3c", **KEYS, **keys})
        self.config = config
        self.observation_space, self.action_space = observation_space or Box(shape=(3,)), Discrete(actions)
        spaces = self.observation_space, self.action_space
        self.fingerprint = fingerprint("da3c", config, *spaces)
        self.size = len(algorithm.ParameterServer(config, *spaces).initial_parameters(0))
        self.manager = CheckpointManager(LocalStore(folder), keep=1000)

    def vector(self, action: int) -> npt.NDArray[np.float32]:
        """Return parameters of a policy that takes `action`, by a bias."""
        heads = {"policy": self.action_space.n, "value": 1}
        groups = (("policy",), ("value",))
        spec = network_for(NetworkConfig(dense=[4]), self.observation_space, heads, None, groups=groups)
        vector = np.zeros(self.size, np.float32)
        spec.layout().views(vector)["policy/bias"][action] = 5.0
        return vector

    def save(self, global_step: int, action: int) -> str:
        """Save a checkpoint whose policy takes `action`; return its id."""
        return self._save(global_step, self.vector(action))

    def save_random(self, global_step: int, seed: int) -> str:
        """Save a checkpoint with random parameters; return its id."""
        return self._save(global_step, np.random.default_rng(seed).normal(0, 1, self.size).astype(np.float32))

    def _save(self, global_step: int, vector: npt.NDArray[np.float32]) -> str:
        middle = self.size // 2
        parts = {"shard-0": {"parameters": vector[:middle]}, "shard-1": {"parameters": vector[middle:]}}
        manifest = {
            "fingerprint": json.loads(self.fingerprint),
            "shards": [
                {"part": "shard-0", "start": 0, "end": middle},
                {"part": "shard-1", "start": middle, "end": self.size},
            ],
        }
        return self.manager.save(global_step, parts, manifest).checkpoint_id
