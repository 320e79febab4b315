"""What RLlib's processes load: environments that hand out bytes, and the network of `da3c_ale_boxing`.

RLlib's own wrappers make float32 of every frame before it is kept and sent, which is four times as much.
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


class Silent(VectorWrapper):
    """Without the emulator's infos, of which RLlib would make a dictionary for each environment and step."""

    def reset(self, **given: Any) -> Any:
        return self.env.reset(**given)[0], {}

    def step(self, actions: Any) -> Any:
        return *self.env.step(actions)[:4], {}


def vector(context: Any) -> Any:
    """The environments of one runner, which expects them to reset in the step behind an end."""
    return Silent(games(context["rom"], context["num_envs"], 1, AutoresetMode.NEXT_STEP))


class Network(TorchRLModule, ValueFunctionAPI):
    """16 filters of 8x8 by 4, 32 of 4x4 by 2, 256 units, all relu; policy, value. Takes uint8 [N, 4, 84, 84]."""

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
