"""Connect Four: the rules, the rounds of both sides, and a training through real ports."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

from environments.ConnectFour.boards import COLUMNS, ROWS, Boards, Scripted, has_line
from environments.ConnectFour.games import PLAYER, RIVAL, ConnectFourGames, ScriptedRival
from support.programs import program
from support.run import Runs

pytestmark = pytest.mark.checks("environments/ConnectFour", "algorithms/ppo", "relaax/server", "relaax/lessons")


def naive(board: np.ndarray) -> bool:
    """Return whether a board, bool [ROWS, COLUMNS], has four in a row, by looking at each place."""
    for row in range(ROWS):
        for column in range(COLUMNS):
            for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(row + k * up, column + k * right) for k in range(4)]
                if all(0 <= r < ROWS and 0 <= c < COLUMNS and board[r, c] for r, c in cells):
                    return True
    return False


def test_four_in_a_row_is_found_in_all_directions() -> None:
    own = np.random.default_rng(0).random((3000, ROWS, COLUMNS)) < 0.4
    expected = np.array([naive(board) for board in own])
    assert 0.2 < expected.mean() < 0.8
    np.testing.assert_array_equal(has_line(own), expected)


def test_stones_fall_on_each_other_until_a_column_is_full() -> None:
    boards = Boards(2)
    for height in range(ROWS):
        boards.drop(np.array([3, 3]), 1 if height % 2 else -1, np.array([True, False]))
        assert boards.heights[:, 3].tolist() == [height + 1, 0]
    assert boards.valid()[:, 3].tolist() == [False, True]
    with pytest.raises(ValueError, match="column 3 is full"):
        boards.drop(np.array([3, 3]), 1)


def test_full_board_without_a_line_is_a_draw() -> None:
    boards, outcomes = Boards(1), []
    pattern = [(0, 1), (2, 3), (4, 5)]  # columns in pairs, in which the order of the sides alternates by two rows
    side = 1
    for columns in pattern:
        for row in range(ROWS):
            for column in columns if row % 4 < 2 else columns[::-1]:
                outcomes.append(boards.drop(np.array([column]), side))
                side = -side
    for _ in range(ROWS):
        outcomes.append(boards.drop(np.array([6]), side))
        side = -side
    ends = [(bool(won[0]), bool(full[0])) for won, full in outcomes]
    assert ends[-1] == (False, True)
    assert not any(won or full for won, full in ends[:-1])


class Noting:
    """A rival that plays at random and notes the outcomes of its games."""

    def __init__(self) -> None:
        self._player = Scripted("random", 3)
        self.seen: list[dict[str, Any]] = []
        self.rewards: list[np.ndarray] = []
        self.ended: list[np.ndarray] = []

    def begin(self, games: ConnectFourGames) -> np.ndarray:
        self.seen.append(games.observe(RIVAL))
        return self._player.choose(games.boards, RIVAL)

    def move(self, games: ConnectFourGames, rewards: np.ndarray, ended: np.ndarray) -> np.ndarray:
        self.rewards.append(rewards)
        self.ended.append(ended)
        return self.begin(games)

    def close(self) -> None: ...


def test_both_sides_see_the_same_games_with_opposite_outcomes() -> None:
    rival, player = Noting(), Scripted("random", 4)
    games = ConnectFourGames(32, rival, seed=0)
    seen, _ = games.reset()
    begun = seen["stones"].sum(axis=(1, 2, 3))
    assert set(begun.tolist()) == {0, 1}, "either side begins"
    own, ended_own = np.zeros(32), 0
    for _ in range(300):
        np.testing.assert_array_equal(seen["stones"][:, 0], games.boards.stones == PLAYER)
        np.testing.assert_array_equal(seen["stones"][:, 1], games.boards.stones == RIVAL)
        assert seen["action_mask"].any(axis=1).all()
        stones = seen["stones"].sum(axis=(2, 3))
        assert (abs(stones[:, 0] - stones[:, 1]) <= 1).all(), "the sides take turns"
        seen, rewards, terminated, truncated, _ = games.step(player.choose(games.boards, PLAYER))
        assert not truncated.any()
        assert not rewards[~terminated].any()
        own += rewards
        ended_own += int(terminated.sum())
    games.step(player.choose(games.boards, PLAYER))
    others, ended = np.sum(rival.rewards, axis=0), np.sum(rival.ended)
    assert ended_own > 600
    assert abs(int(ended) - ended_own) <= 32, "the rival learns of its own last move with its next one"
    assert (abs(own + others) <= 1).all()
    for first, state in zip(rival.ended[:-1], rival.seen[1:], strict=False):
        assert (state["stones"][first].sum(axis=(1, 2, 3)) <= 1).all(), "a new game has at most the first stone"


@pytest.mark.parametrize("seed", [0, 1])
def test_seed_repeats_games(seed: int) -> None:
    def play() -> list[float]:
        games, player = ConnectFourGames(4, ScriptedRival("random", seed), seed), Scripted("random", seed)
        games.reset()
        return [float(games.step(player.choose(games.boards, PLAYER))[1].sum()) for _ in range(60)]

    assert play() == play()


def test_reset_with_a_seed_repeats_the_scripted_rival() -> None:
    games = ConnectFourGames(4, ScriptedRival("random", 1), 1)

    def play(seed: int) -> list[float]:
        games.reset(seed=seed)
        player = Scripted("random", 1)
        return [float(games.step(player.choose(games.boards, PLAYER))[1].sum()) for _ in range(60)]

    first, other, again = play(5), play(6), play(5)
    assert first == again
    assert first != other


def test_player_that_looks_ahead_beats_random_moves() -> None:
    games, player = ConnectFourGames(100, ScriptedRival("random", 1), seed=1), Scripted("blocks", 2)
    games.reset()
    outcomes = []
    for _ in range(40):
        _, rewards, ended, _, _ = games.step(player.choose(games.boards, PLAYER))
        outcomes += rewards[ended].tolist()
    assert np.mean(outcomes) > 0.8


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["random", "--episodes", "20"], 0, "20 episodes"),
        (["check"], 0, "no warnings"),
        (["random", "--opponent", "self"], 2, "--opponent self needs a server and training: choose random or blocks"),
    ],
)
def test_program_without_a_server(arguments: list[str], code: int, text: str) -> None:
    done = program("ConnectFour", arguments[0], "connect_four", "4", *arguments[1:])
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_bundled_configuration_plays_against_its_older_selves(runs: Runs, shards: int) -> None:
    run = runs.start(
        *("--no-progress", "--set", "opponents.every=4000", "--set", f"parameter-server.shards={shards}"),
        *("--set", "run.envs_per_client=16", "--set", "run.clients=1"),
        config="ppo_connect_four",
    )
    status = run.wait_for(lambda status: status.HasField("opponent_win_rate"), "games with checkpoints have ended", 240)
    assert status.exploit_workers == 1
    run.running.send_signal(signal.SIGINT)
    assert run.running.wait(90) == 130, run.running.report()
