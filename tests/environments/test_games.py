"""Behaviour of ale-py's vector that ale-py does not document and that `Games` relies on."""

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode

from environments.ALE.games import Games, whole_games


def play(games, steps, seed=0):
    """Take random steps. Return (observations, rewards, terminated, truncated, infos) of each."""
    rng = np.random.default_rng(seed)
    return [games.step(rng.integers(games.single_action_space.n, size=games.num_envs)) for _ in range(steps)]


@pytest.fixture
def make():
    made = []

    def maker(*args, **options):
        made.append(Games(*args, threads=1, **options))
        return made[-1]

    yield maker
    for games in made:
        games.close()


def test_observation_is_newest_frame_of_each_game(make):
    games = make("boxing", 3)
    observations, _ = games.reset(seed=5)
    assert (observations.shape, observations.dtype) == ((3, 84, 84), np.uint8)
    assert games.single_observation_space.contains(observations[0])
    (step,) = play(games, 1)
    assert step[0].shape == (3, 84, 84)
    assert games.single_action_space.n == 18


def test_full_action_space_has_18_actions(make):
    assert make("breakout", 1).single_action_space.n == 4
    assert make("breakout", 1, full_action_space=True).single_action_space.n == 18


@pytest.mark.slow
@pytest.mark.checks("environments/ALE", "relaax/client")
def test_same_seed_and_actions_repeat_games(make):
    runs = []
    for seed in (1, 1, 2):
        games = make("breakout", 2)
        games.reset(seed=seed)
        runs.append(np.stack([step[0] for step in play(games, 40)]))
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()


def test_lost_life_ends_episode_but_not_game(make):
    games = make("breakout", 2, life_loss=True, noop_max=0)
    games.reset(seed=1)
    ends, lives, over = np.zeros(2, int), [[], []], []
    scores, lengths = np.zeros(2), np.zeros(2, int)
    for _, rewards, terminated, truncated, infos in play(games, 400):
        scores += rewards
        lengths += 1
        ends += terminated
        assert not truncated.any()
        assert "final_obs" not in infos
        for episode in whole_games(infos):
            i = episode.environment
            assert terminated[i]
            lives[i].append(int(ends[i]))
            over.append(episode)
            assert (episode.episode_return, episode.length) == (scores[i], lengths[i])
            scores[i], lengths[i], ends[i] = 0.0, 0, 0
    assert len(over) >= 2
    assert all(count == 5 for counts in lives for count in counts)  # five lives per game
    assert any(episode.episode_return > 0 for episode in over)


def test_without_life_loss_episode_is_whole_game(make):
    games = make("breakout", 2)
    games.reset(seed=1)
    over = 0
    for _, _, terminated, _, infos in play(games, 300):
        assert sorted(e.environment for e in whole_games(infos)) == np.flatnonzero(terminated).tolist()
        over += terminated.sum()
    assert over >= 2


@pytest.mark.slow
@pytest.mark.checks("environments/ALE", "relaax/client")
@pytest.mark.parametrize("life_loss", [False, True])
def test_truncated_game_has_its_final_frame(make, life_loss):
    """The final observation equals the one of the same game with NEXT_STEP autoreset at that step."""
    settings = {"noop_max": 0, "num_threads": 1, "stack_num": 1, "max_num_frames_per_episode": 100}
    later = AtariVectorEnv("boxing", 2, autoreset_mode=AutoresetMode.NEXT_STEP, **settings)
    cut = make("boxing", 2, max_frames=100, noop_max=0, life_loss=life_loss)
    later.reset(seed=4)
    first, _ = cut.reset(seed=4)
    laters, cuts = play(later, 30), play(cut, 30)
    (when,) = [k for k, step in enumerate(cuts) if step[3].any()]
    assert when == 24  # 100 frames are 25 steps
    observations, _, terminated, truncated, infos = cuts[when]
    assert truncated.tolist() == [True, True]
    assert terminated.tolist() == [False, False]
    assert laters[when][3].all()
    assert (infos["final_obs"] == laters[when][0][:, 0]).all()
    assert (infos["final_obs"] != observations).any()
    assert (observations == first).mean() > 0.99  # a new game's first frame
    assert [e.length for e in whole_games(infos)] == [25, 25]


def test_rewards_are_raw_score(make):
    games = make("ms_pacman", 1)
    games.reset(seed=1)
    rewards = {float(step[1][0]) for step in play(games, 200)}
    assert 10.0 in rewards


def test_failed_constructor_raises_no_second_error():
    with pytest.raises(Exception, match="frameskip"):
        Games("boxing", 1, frame_skip=0)
