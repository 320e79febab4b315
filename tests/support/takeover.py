"""Wrappers of gymnasium in which a scripted expert, or an adversary, takes some of the first steps.

They put the action into `infos["taken_action"]`, for the option `--taken-action taken_action`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Takeover(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper in which somebody else takes a share of the first steps, in stretches of `length` steps.

    The first `steps // environments` steps are divided into periods of `length / share`. Each period has one stretch at
    a random place. `environments`: number over all clients. `wrong`: an adversary takes steps instead of the expert.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        share: float = 0.2,
        steps: int = 5_000,
        environments: int = 1,
        length: int = 100,
        wrong: bool = False,
    ) -> None:
        super().__init__(env)
        self._steps, self._length, self._period = steps // environments, length, round(length / share)
        self._wrong = wrong
        self._rng = np.random.default_rng()
        self._step = self._begin = 0
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state, infos = self.env.reset(seed=seed, options=options)
        return self._state, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        taken = None
        if self._is_taken():
            taken = self.adversary(self._state) if self._wrong else self.expert(self._state)
        state, reward, terminated, truncated, infos = self.env.step(action if taken is None else taken)
        self._state = state
        return state, reward, terminated, truncated, {**infos, "taken_action": taken}

    def _is_taken(self) -> bool:
        place = self._step % self._period
        if place == 0:
            self._begin = int(self._rng.integers(self._period - self._length + 1))
        self._step += 1
        return self._step <= self._steps and self._begin <= place < self._begin + self._length

    def expert(self, state: Any) -> Any:
        """Return a good action."""
        raise NotImplementedError

    def adversary(self, state: Any) -> Any:
        """Return a bad action."""
        raise NotImplementedError


class CartPoleExpert(Takeover):
    """A controller that keeps the pole up for 500 steps."""

    def expert(self, state: Any) -> int:
        place, speed, angle, turn = state
        return int(angle + 0.3 * turn + 0.03 * place + 0.06 * speed > 0)

    def adversary(self, state: Any) -> int:
        return 1 - self.expert(state)


class PendulumExpert(Takeover):
    """A controller that swings the pendulum up by its energy, and holds it there."""

    def expert(self, state: Any) -> np.ndarray:
        cosine, sine, turn = state
        angle = np.arctan2(sine, cosine)
        if cosine > 0.9:
            torque = -12 * angle - 3 * turn
        else:
            energy = 0.5 * turn * turn / 3 + 5 * (cosine - 1)  # 0 at rest above
            torque = -2 * np.sign(turn or 1.0) * np.sign(energy)
        return np.clip([torque], -2, 2).astype(np.float32)

    def adversary(self, state: Any) -> np.ndarray:
        return -self.expert(state)
