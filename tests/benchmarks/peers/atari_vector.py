"""Atari for the peers: ale-py's vector environment with the preprocessing of RELAAX (environments/ALE).

Grayscale 84x84, frame skip 4 with the maximum of the last two frames, up to 30 no-op starts, no sticky actions, whole
games. ale-py stacks the last four frames and clips rewards to [-1, 1] in C++; in RELAAX the worker does this.
"""

from __future__ import annotations

from typing import Any

from ale_py import ALEInterface, LoggerMode
from ale_py.vector_env import AtariVectorEnv


def games(rom: str, environments: int, threads: int, autoreset: Any) -> Any:
    """Return a vector environment with observations uint8 [N, 4, 84, 84]. `threads`: 0 means one per core."""
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
