"""Modules for RLlib's processes: environments with uint8 observations, and the network of `da3c_ale_boxing`.

RLlib's own wrappers convert every frame to float32 before storing and sending it, which needs four times the bytes.
"""

from __future__ import annotations

from typing import Any

import torch
from atari_vector import games
from gymnasium.vector import AutoresetMode, VectorWrapper
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import nn


class WithoutInfos(VectorWrapper):
    """A wrapper that drops the emulator's infos. RLlib would build a dictionary per environment and step."""

    def reset(self, **given: Any) -> Any:
        return self.env.reset(**given)[0], {}

    def step(self, actions: Any) -> Any:
        return *self.env.step(actions)[:4], {}


def vector(context: Any) -> Any:
    """Return the environments of one runner. RLlib expects the reset in the step after an episode's end."""
    return WithoutInfos(games(context["rom"], context["num_envs"], 1, AutoresetMode.NEXT_STEP))


class Network(TorchRLModule, ValueFunctionAPI):
    """A network of 16 filters 8x8, stride 4; 32 filters 4x4, stride 2; 256 units; relu. Input: uint8 [N, 4, 84, 84]."""

    def setup(self) -> None:
        self._trunk = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 9 * 9, 256),
            nn.ReLU(),
        )
        self._policy = nn.Linear(256, self.action_space.n)
        self._value = nn.Linear(256, 1)

    def _features(self, batch: Any) -> Any:
        return self._trunk(batch[Columns.OBS].to(torch.float32) / 255.0)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {Columns.ACTION_DIST_INPUTS: self._policy(self._features(batch))}

    def _forward_train(self, batch: Any, **kwargs: Any) -> Any:
        features = self._features(batch)
        return {Columns.ACTION_DIST_INPUTS: self._policy(features), Columns.EMBEDDINGS: features}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self._value(self._features(batch) if embeddings is None else embeddings).squeeze(-1)
