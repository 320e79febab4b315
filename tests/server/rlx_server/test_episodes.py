"""Tests of the counter of the episodes of a connection."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.server.rlx_server.workers.episodes import EpisodeCounter


def mask(*values: int) -> np.ndarray:
    return np.array(values, np.bool_)


def ended(counter: EpisodeCounter, where: np.ndarray) -> list[tuple[float, int]]:
    """End the episodes of the environments in `where`; return their returns and lengths."""
    return [(value, length) for _, value, length, _ in counter.end(where)]


def rewards(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_returns_and_lengths_are_counted_per_environment() -> None:
    counter = EpisodeCounter(2)
    counter.start(None)
    counter.count(rewards(1, 10), mask(1, 1))
    counter.count(rewards(2, 20), mask(1, 1))
    assert ended(counter, mask(1, 0)) == [(3.0, 2)]
    counter.count(rewards(4, 40), mask(1, 1))
    assert ended(counter, mask(1, 1)) == [(4.0, 1), (70.0, 3)]


def test_invalid_step_adds_no_reward_and_no_length() -> None:
    counter = EpisodeCounter(2)
    counter.start(None)
    counter.count(rewards(1, 99), mask(1, 0))
    counter.count(rewards(1, 5), mask(1, 1))
    assert ended(counter, mask(1, 1)) == [(2.0, 2), (5.0, 1)]


def test_episode_that_was_partial_at_the_start_is_not_reported() -> None:
    counter = EpisodeCounter(2)
    counter.start(mask(1, 0))
    counter.count(rewards(1, 2), mask(1, 1))
    assert ended(counter, mask(1, 1)) == [(2.0, 1)]
    counter.count(rewards(3, 4), mask(1, 1))
    assert ended(counter, mask(1, 1)) == [(3.0, 1), (4.0, 1)]


def test_start_resets_all_counts() -> None:
    counter = EpisodeCounter(1)
    counter.start(mask(1))
    counter.count(rewards(7), mask(1))
    counter.start(None)
    counter.count(rewards(1), mask(1))
    assert ended(counter, mask(1)) == [(1.0, 1)]


def test_small_rewards_are_not_lost_in_large_returns() -> None:
    counter = EpisodeCounter(1)
    counter.start(None)
    counter.count(rewards(2.0**24), mask(1))
    for _ in range(4):
        counter.count(rewards(1), mask(1))  # a float32 sum would not change
    assert ended(counter, mask(1)) == [(pytest.approx(2.0**24 + 4, abs=0), 5)]


def test_episode_duration_is_from_first_observation_to_end() -> None:
    counter = EpisodeCounter(2)
    counter.start(None, 10.0)
    assert [seconds for *_, seconds in counter.end(mask(1, 0), 12.0)] == [2.0]
    counter.set_start(mask(1, 0), 13.0)  # NEXT_STEP: the reset came a step later
    assert [seconds for *_, seconds in counter.end(mask(1, 1), 16.0)] == [3.0, 6.0]
    assert [seconds for *_, seconds in counter.end(mask(1, 1), 17.0)] == [1.0, 1.0]
