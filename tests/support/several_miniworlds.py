"""Render three mazes of MiniWorld at once and one alone. Needs its own process: Mesa and numba both load LLVM."""

from __future__ import annotations

import numpy as np

from environments.MiniWorld.world import DrawnWorld, register

MAZE = "MiniWorld-MazeS3Fast-v0"


def rendered_frames(environments: list[DrawnWorld], first: int) -> list[np.ndarray]:
    """Return the frames of all environments in turn. `first`: seed of the first environment."""
    frames = [environment.reset(seed=seed)[0].copy() for seed, environment in enumerate(environments, first)]
    for action in (0, 0, 2, 2, 1, 2):
        frames += [environment.step(action)[0].copy() for environment in environments]
    return frames


def main() -> None:
    """Raise AssertionError if other environments change the frames of an environment."""
    register()
    several = rendered_frames([DrawnWorld(MAZE, 42, False) for _ in range(3)], 5)
    alone = rendered_frames([DrawnWorld(MAZE, 42, False)], 6)
    np.testing.assert_array_equal(several[1::3], alone)
    assert (several[0] != several[1]).any()


if __name__ == "__main__":
    main()
