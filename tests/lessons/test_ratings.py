"""Ratings of opponents: Elo, the win rate, and what a checkpoint keeps."""

from __future__ import annotations

import json

import pytest

from relaax.lessons.ratings import GAMES, INITIAL, SWING, OpponentRatings, expected_score


def rated(*steps: int, keep: int = 10) -> OpponentRatings:
    """Return ratings with a checkpoint, named like its step, at each of these steps. Opponents are 100 steps apart."""
    ratings = OpponentRatings(keep, 100)
    for step in steps:
        ratings.add_checkpoint(str(step), step)
    return ratings


def test_expected_score_is_that_of_elo() -> None:
    assert expected_score(1200, 1200) == 0.5
    assert expected_score(1600, 1200) == pytest.approx(10 / 11)
    assert expected_score(1200, 1600) == pytest.approx(1 / 11)
    assert expected_score(1e300, -1e300) == pytest.approx(1.0)


def test_game_moves_both_ratings_by_the_same_points() -> None:
    ratings = rated(100)
    ratings.record([("100", -1.0)])
    assert (ratings.rating, ratings.of("100")) == (INITIAL + SWING / 2, INITIAL - SWING / 2)
    ratings.record([("100", 0.0)])
    points = SWING * (0.5 - expected_score(INITIAL + SWING / 2, INITIAL - SWING / 2))
    assert points < 0
    assert ratings.rating == pytest.approx(INITIAL + SWING / 2 + points)
    assert ratings.of("100") == pytest.approx(INITIAL - SWING / 2 - points)


def test_sign_of_the_opponents_return_decides_the_game() -> None:
    ratings = rated(100)
    assert ratings.win_rate is None
    ratings.record([("100", -0.25), ("100", -3.0), ("100", 0.0), ("100", 9.0)])
    assert ratings.win_rate == (1 + 1 + 0.5 + 0) / 4


def test_win_rate_is_that_of_the_last_games() -> None:
    ratings = rated(100)
    ratings.record([("100", 1.0)] * GAMES)
    ratings.record([("100", -1.0)] * (GAMES // 2))
    assert ratings.win_rate == 0.5


def test_checkpoint_takes_the_rating_of_the_policy() -> None:
    ratings = rated(100)
    ratings.record([("100", -1.0)] * 50)
    ratings.add_checkpoint("200", 200)
    assert ratings.of("200") == ratings.rating > INITIAL


def test_only_the_first_checkpoint_after_a_multiple_is_rated() -> None:
    ratings = rated(40, 130, 160, 199, 320)
    assert [ratings.of(name) is not None for name in ("40", "130", "160", "199", "320")] == [0, 1, 0, 0, 1]


def test_rating_of_old_opponents_is_dropped() -> None:
    ratings = rated(*range(100, 1000, 100), keep=2)
    assert [step for step in range(100, 1000, 100) if ratings.of(str(step)) is not None] == [600, 700, 800, 900]


def test_unknown_checkpoint_counts_as_rated_like_the_policy() -> None:
    ratings = rated()
    ratings.record([("unknown", -1.0)] * 2)
    assert (ratings.rating, ratings.win_rate, ratings.of("unknown")) == (INITIAL + SWING, 1.0, None)


def test_restored_ratings_continue() -> None:
    ratings = rated(900, 1000, keep=1)
    ratings.record([("1000", -1.0), ("900", 0.0)])
    restored = OpponentRatings(1, 100)
    restored.restore(json.loads(json.dumps(ratings.as_json(), sort_keys=True)))
    assert restored.as_json() == ratings.as_json()
    restored.add_checkpoint("1050", 1050)
    restored.add_checkpoint("1100", 1100)
    assert [restored.of(name) is not None for name in ("900", "1000", "1050", "1100")] == [False, True, False, True]


@pytest.mark.parametrize("change", [{"rating": "high"}, {"scores": [2.0]}, {"checkpoints": [["a"]]}, {"newest": None}])
def test_damaged_ratings_are_an_error_and_change_nothing(change: dict[str, object]) -> None:
    ratings = rated(100)
    before = ratings.as_json()
    with pytest.raises((ValueError, TypeError)):
        ratings.restore({**before, **change})
    assert ratings.as_json() == before
