"""What is seen of Doom: a small gray frame."""

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

_LOOKS, _LOOK_SECONDS = 20, 0.01
_BEGINNING = threading.Lock()  # connections of one program begin their engines in parallel


class Screen(gymnasium.Wrapper):
    """Keep of ViZDoom's observations the screen: gray, uint8 [side, side].

    ViZDoom has no screen where an episode has ended, and gives zeros: the last observation is the newest screen seen.
    An episode that its time limit ended is truncated, and not terminated as well.
    """

    def __init__(self, env: gymnasium.Env, side: int) -> None:
        super().__init__(env)
        self._reaper: ProcessReaper | None = None
        self.observation_space = Box(0, 255, (side, side), np.uint8)
        self._side = side
        self._seen: npt.NDArray[np.uint8] = np.zeros((side, side), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        begin = self.env.reset if self._reaper else self._begin
        observation, info = begin(seed=seed, options=options)
        self._seen = self._small(observation["screen"])
        return self._seen, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not terminated:
            self._seen = self._small(observation["screen"])
        return self._seen, float(reward), terminated and not truncated, truncated, info

    def close(self) -> None:
        super().close()
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.close()

    def _begin(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin the first episode, and with it the engine, which keeps its files in its working directory.

        It would wait forever for a program that was killed.
        """
        folder, here = tempfile.mkdtemp(prefix="relaax-vizdoom-"), os.getcwd()
        self._reaper = ProcessReaper(folder)
        with _BEGINNING:
            others = set(children())
            os.chdir(folder)
            try:
                return self.env.reset(**options)
            finally:
                os.chdir(here)
                for engine in _begun_since(others):
                    self._reaper.register(engine)

    def _small(self, screen: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        flat = screen[..., 0] if screen.shape[-1] == 1 else gray(screen)
        small: npt.NDArray[np.uint8] = cv2.resize(flat, (self._side, self._side), interpolation=cv2.INTER_AREA)
        return small


def _begun_since(others: set[int]) -> set[int]:
    """Return the processes that have begun. The system may not list one while the thread that began it ends."""
    for _ in range(_LOOKS):
        found = set(children()) - others
        if found:
            break
        time.sleep(_LOOK_SECONDS)
    return found
