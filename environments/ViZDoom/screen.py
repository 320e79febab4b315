"""A wrapper of ViZDoom that observes a small gray frame, and that ends the engine with the program."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from typing import Any

import cv2
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from relaax.client.program.families import ProcessReaper, children, gray

_ATTEMPTS, _ATTEMPT_SECONDS = 20, 0.01
_START_LOCK = threading.Lock()  # connections of one program start their engines in parallel


class Screen(gymnasium.Wrapper):
    """A wrapper that keeps only the screen of ViZDoom's observations: gray, uint8 [side, side].

    At the end of an episode ViZDoom has no screen and gives zeros, so the last observation is the newest earlier
    screen. An episode that ended by its time limit is truncated, and not terminated as well.
    """

    def __init__(self, env: gymnasium.Env, side: int) -> None:
        super().__init__(env)
        self._reaper: ProcessReaper | None = None
        self.observation_space = Box(0, 255, (side, side), np.uint8)
        self._side = side
        self._seen: npt.NDArray[np.uint8] = np.zeros((side, side), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        reset = self.env.reset if self._reaper else self._start
        observation, info = reset(seed=seed, options=options)
        self._seen = self._shrink(observation["screen"])
        return self._seen, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not terminated:
            self._seen = self._shrink(observation["screen"])
        return self._seen, float(reward), terminated and not truncated, truncated, info

    def close(self) -> None:
        super().close()
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.close()

    def _start(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start the engine by a first reset, in its own working directory, where it keeps its files.

        The reaper ends the engine with this program. Without it, the engine waits forever if the program is killed.
        """
        folder, previous = tempfile.mkdtemp(prefix="relaax-vizdoom-"), os.getcwd()
        self._reaper = ProcessReaper(folder)
        with _START_LOCK:
            before = set(children())
            os.chdir(folder)
            try:
                return self.env.reset(**options)
            finally:
                os.chdir(previous)
                for engine in _new_children(before):
                    self._reaper.register(engine)

    def _shrink(self, screen: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        flat = screen[..., 0] if screen.shape[-1] == 1 else gray(screen)
        small: npt.NDArray[np.uint8] = cv2.resize(flat, (self._side, self._side), interpolation=cv2.INTER_AREA)
        return small


def _new_children(before: set[int]) -> set[int]:
    """Return the child processes that are not in `before`.

    The system may not list a process while the thread that started it ends, so several attempts are made.
    """
    for _ in range(_ATTEMPTS):
        found = set(children()) - before
        if found:
            break
        time.sleep(_ATTEMPT_SECONDS)
    return found
