"""Wrappers of gymnasium in which a scripted expert, or an adversary, takes some of the first steps.

They put the action into `infos["taken_action"]`, for the option `--taken-action taken_action`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SHARE, STEPS = 0.2, 5_000


class Takeover(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper in which somebody else takes a share of the first steps.

    `share`: probability of a takeover, which lasts `length` steps on average. `steps`: the last step with a takeover,
    counted over the `environments` of all clients. `wrong`: whether an adversary takes them.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        share: float = SHARE,
        steps: int = STEPS,
        environments: int = 1,
        length: float = 10.0,
        wrong: bool = False,
    ) -> None:
        super().__init__(env)
        self._left, self._share, self._length, self._wrong = steps // environments, share, length, wrong
        self._rng = np.random.default_rng(id(env) % 2**32)
        self._is_taken = False
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state, infos = self.env.reset(seed=seed, options=options)
        return self._state, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        taken = None
        if self._left > 0:
            self._left -= 1
            # A two-state chain whose share of taken steps is `share`, in runs of `length` steps.
            begin = self._share / (1 - self._share) / self._length
            self._is_taken = self._rng.random() < (1 - 1 / self._length if self._is_taken else begin)
            if self._is_taken:
                taken = self.adversary(self._state) if self._wrong else self.expert(self._state)
        state, reward, terminated, truncated, infos = self.env.step(action if taken is None else taken)
        self._state = state
        return state, reward, terminated, truncated, {**infos, "taken_action": taken}

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
