"""Code that the programs of environment families share."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from relaax.client.command import UsageError
from relaax.client.program import families

IDS = ("VizdoomMyWayHome-v0", "VizdoomMyWayHome-v1", "VizdoomBasic-v1", "VizdoomBasic-MultiBinary-v1", "CartPole-v1")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("VizdoomMyWayHome-v0", "VizdoomMyWayHome-v0"),
        ("VizdoomMyWayHome", "VizdoomMyWayHome-v1"),
        ("my_way_home", "VizdoomMyWayHome-v1"),
        ("MyWayHome-v0", "VizdoomMyWayHome-v0"),
        ("basic-multi-binary", "VizdoomBasic-MultiBinary-v1"),
        ("basic", "VizdoomBasic-v1"),
    ],
)
def test_part_of_id_finds_newest_id(wanted: str, found: str) -> None:
    assert families.find_id(wanted, IDS, "Vizdoom", "ViZDoom") == found


@pytest.mark.parametrize(
    ("wanted", "end"),
    [("my_way_hom", "; the nearest is 'VizdoomMyWayHome'"), ("CartPole-v1", "'CartPole-v1'"), ("xyzzy", "'xyzzy'")],
)
def test_unknown_id_error_suggests_nearest_id(wanted: str, end: str) -> None:
    with pytest.raises(UsageError) as refused:
        families.find_id(wanted, IDS, "Vizdoom", "ViZDoom")
    assert str(refused.value).startswith(f"ViZDoom has no environment {wanted!r}")
    assert str(refused.value).endswith(end)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_resets_in_step_that_ends_episode(mode: str) -> None:
    env = families.vector(lambda: gymnasium.make("CartPole-v1", max_episode_steps=2), 2, mode)
    env.reset(seed=1)
    env.step(np.zeros(2, np.int64))
    _, _, _, truncated, infos = env.step(np.zeros(2, np.int64))
    assert truncated.tolist() == [True, True]
    assert "final_obs" in infos
    env.close()


class Counted(gymnasium.Env):
    """An environment whose infos have an entry that gymnasium cannot merge."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict[str, object]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        self.t += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"t": self.t, "odd": np.zeros(self.np_random.integers(9))}


def test_async_vector_sends_only_named_infos() -> None:
    env = families.vector(Counted, 2, "async", ["t"])
    try:
        env.reset(seed=1)
        for t in (1, 2, 3):
            infos = env.step(np.zeros(2, np.int64))[4]
            assert infos["t"].tolist() == [t, t]
            assert set(infos) == {"t", "_t"}
    finally:
        env.close()
