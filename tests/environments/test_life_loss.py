import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from environments.OpenAI_Gym.life_loss import LifeLoss, whole_games
from relaax.client import Episode


class Emulator:
    left = 0

    def lives(self):
        return self.left


class Game(gymnasium.Env):
    """A game with two lives; every third step loses one. The observation is the number of steps of the game."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, cut_after=100):
        self.ale = Emulator()
        self.games = 0
        self.steps = 0
        self.cut_after = cut_after

    def reset(self, *, seed=None, options=None):
        self.games += 1
        self.steps = 0
        self.ale.left = 2
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps % 3 == 0:
            self.ale.left -= 1
        over = self.ale.left == 0
        return np.full(1, self.steps, np.float32), 2.0, over, not over and self.steps == self.cut_after, {}


def test_lost_life_ends_episode_and_game_continues():
    game = Game()
    env = LifeLoss(game)
    env.reset()
    steps = [env.step(0) for _ in range(3)]
    assert [step[2] for step in steps] == [False, False, True]
    observation, _ = env.reset()
    assert observation == 3
    assert game.games == 1
    steps = [env.step(0) for _ in range(3)]
    assert [int(step[0][0]) for step in steps] == [4, 5, 6]
    assert [step[2] for step in steps] == [False, False, True]
    assert steps[-1][4] == {"game_score": 12.0, "game_length": 6}
    observation, _ = env.reset()
    assert observation == 0
    assert game.games == 2


def test_truncated_game_is_over():
    game = Game(cut_after=5)
    env = LifeLoss(game)
    env.reset()
    for _ in range(3):
        env.step(0)
    env.reset()
    env.step(0)
    _, _, terminated, truncated, info = env.step(0)
    assert (terminated, truncated) == (False, True)
    assert info == {"game_score": 10.0, "game_length": 5}
    env.reset()
    assert game.games == 2


def test_reset_with_seed_starts_new_game():
    game = Game()
    env = LifeLoss(game)
    env.reset()
    env.step(0)
    env.reset(seed=1)
    assert game.games == 2


def test_vector_reports_whole_games():
    vector = SyncVectorEnv(
        [lambda: LifeLoss(Game()), lambda: LifeLoss(Game(cut_after=4))], autoreset_mode=AutoresetMode.SAME_STEP
    )
    vector.reset()
    found = []
    for _ in range(6):
        *_, infos = vector.step(np.zeros(2, np.int64))
        found.append(list(whole_games(infos)))
    assert found == [[], [], [], [Episode(1, 8.0, 4)], [], [Episode(0, 12.0, 6)]]
