"""Published scores, and statistics of returns."""

from __future__ import annotations

import numpy as np
import pytest
from ale_py import roms

from relaax.evaluation import scores
from relaax.evaluation.playing import seed_of, statistics_of


def test_both_tables_name_games_of_the_emulator():
    known = {rom.replace("_", "") for rom in roms.get_all_rom_ids()}
    assert len(scores.noop_starts()) == len(scores.human_starts()) == 57
    assert scores.noop_starts().keys() == scores.human_starts().keys()
    assert scores.noop_starts().keys() <= known


def test_published_scores_match_the_papers():
    assert scores.noop_starts()["breakout"] == {
        **{"random": 1.7, "human": 30.5, "dqn": 401.2, "gorila": 402.2, "double_dqn": 375.0, "dueling": 345.3},
        **{"rainbow": 417.5, "a3c": 496.0, "impala": 787.34},
    }
    assert scores.human_starts()["boxing"]["a3c_ff_4_days"] == 59.8


@pytest.mark.parametrize(
    ("environment", "game"),
    [
        ("pong", "pong"),
        ("ms_pacman", "mspacman"),
        ("ALE/MsPacman-v5", "mspacman"),
        ("BoxingNoFrameskip-v4", "boxing"),
        ("up_n_down", "upndown"),
        ("CartPole-v1", None),
        ("MinAtar/Breakout-v1", None),
    ],
)
def test_game_is_found_by_rom_and_by_id(environment, game):
    assert scores.game_of(environment) == game


def test_human_normalized_score_is_0_for_random_100_for_human():
    assert scores.human_normalized(-20.7, "pong") == 0
    assert scores.human_normalized(14.6, "pong") == 100
    assert scores.human_normalized(1.7 + (30.5 - 1.7) / 2, "breakout") == pytest.approx(50)
    assert scores.human_normalized(1.0, "cartpole") is None


def test_statistics_match_numpy_and_are_reproducible():
    found = statistics_of([1.0, 2.0, 3.0, 10.0])
    assert (found.episodes, found.mean, found.median, found.smallest, found.largest) == (4, 4.0, 2.5, 1.0, 10.0)
    assert found.std == pytest.approx(np.std([1, 2, 3, 10], ddof=1))
    assert 1.0 < found.low < 4.0 < found.high < 10.0
    assert found == statistics_of([1.0, 2.0, 3.0, 10.0])
    assert statistics_of([5.0]).std == 0.0


def test_interval_contains_the_mean_95_percent_of_the_time():
    rng = np.random.default_rng(0)
    intervals = [statistics_of(rng.normal(3.0, 2.0, 30)) for _ in range(200)]
    assert 0.88 <= np.mean([one.low <= 3.0 <= one.high for one in intervals]) <= 0.98


def test_seeds_differ_between_episodes_and_evaluations():
    seeds = {seed_of(seed, number) for seed in range(30) for number in range(30)}
    assert len(seeds) == 900
    assert max(seeds) < 2**31
    assert seed_of(3, 7) == seed_of(3, 7)
