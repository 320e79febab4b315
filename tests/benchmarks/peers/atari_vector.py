"""Atari for the peers: ale-py's own vector environment with the preprocessing that RELAAX has (environments/ALE).

Grayscale 84x84, frame skip 4 with the maximum of the last two frames, up to 30 no-op starts, no sticky actions, whole
games. The last four frames are stacked and rewards clipped to [-1, 1] by ale-py, in C++; RELAAX's worker does that.
"""

from __future__ import annotations

from typing import Any

from ale_py import ALEInterface, LoggerMode
from ale_py.vector_env import AtariVectorEnv


def games(rom: str, environments: int, threads: int, autoreset: Any) -> Any:
    """Observations uint8 [N, 4, 84, 84]. `threads`: of the emulator, 0 for one per core."""
    ALEInterface.setLoggerMode(LoggerMode.Error)
    return AtariVectorEnv(
        rom,
        environments,
        stack_num=4,
        reward_clipping=True,
        frameskip=4,
        noop_max=30,
        repeat_action_probability=0.0,
        num_threads=threads,
        autoreset_mode=autoreset,
    )
