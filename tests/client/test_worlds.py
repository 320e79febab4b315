"""Tests of `Worlds`: seeds, partial resets and observations outside the space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.client import Box, Discrete, Worlds


class Drawn:
    """An environment whose first observation is a random number, and later ones the action plus 1."""

    observation_space = Box(-100, 100, shape=(1,))
    action_space = Discrete(5)

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def restart(self) -> Any:
        return np.array([self._random.random()], np.float32)

    def do(self, action: Any) -> tuple[Any, float, bool, bool]:
        return np.array([action + 1], np.float32), 10.0 * action, action == 3, action == 4


def first_observations(count: int, seed: int | None) -> list[float]:
    observations, _ = Worlds(Drawn, count, seed).reset()
    return [float(row[0]) for row in observations]


def test_environment_i_has_seed_plus_i() -> None:
    assert first_observations(4, 7) == [first_observations(1, seed)[0] for seed in (7, 8, 9, 10)]
    assert len(set(first_observations(4, 7))) == 4
    assert first_observations(4, 7) == first_observations(4, 7)


def test_environments_without_a_seed_differ() -> None:
    assert len({*first_observations(4, None), *first_observations(4, None)}) == 8


def test_reset_mask_resets_only_the_masked_environments() -> None:
    worlds = Worlds(Drawn, 3, seed=1)
    first, _ = worlds.reset()
    observations, rewards, terminated, truncated, _ = worlds.step(np.array([1, 3, 4]))
    assert observations.tolist() == [[2], [4], [5]]
    assert rewards.tolist() == [10, 30, 40]
    assert (terminated.tolist(), truncated.tolist()) == ([False, True, False], [False, False, True])
    after_reset, _ = worlds.reset(options={"reset_mask": terminated | truncated})
    assert after_reset[0] == 2
    assert not {*after_reset[1:, 0].tolist()} & {*first[:, 0].tolist()}, "the generator is not reset"


def test_reset_with_a_seed_restarts_the_generators() -> None:
    worlds = Worlds(Drawn, 2, seed=1)
    worlds.reset()
    for seed in (7, 8, 7):
        observations, _ = worlds.reset(seed=seed)
        assert observations[:, 0].tolist() == first_observations(2, seed)
    again, _ = worlds.reset(options={"reset_mask": np.array([False, True])}, seed=7)
    assert again[:, 0].tolist() == first_observations(2, 7)


def test_observation_outside_the_space_is_refused() -> None:
    class Wide(Drawn):
        def restart(self) -> Any:
            return np.zeros(2, np.float32)

    with pytest.raises(ValueError, match="shape"):
        Worlds(Wide, 1).reset()
