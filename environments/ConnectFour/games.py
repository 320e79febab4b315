"""Games of Connect Four as a vector of environments: one side is the environment's player, the other its rival."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relaax.client import Box, Dict, Discrete, VectorClient, command

Array = npt.NDArray[Any]
PLAYER, RIVAL = 1, -1


class Rival(Protocol):
    """The player of the other side, in all games."""

    def seed(self, seed: int) -> None:
        """Set the seed of its random numbers."""

    def begin(self, games: ConnectFourGames) -> Array:
        """Return the first columns, integers [N]."""

    def move(self, games: ConnectFourGames, rewards: Array, ended: Array) -> Array:
        """Return the next columns, integers [N]. `rewards`, `ended`: what its last columns led to."""

    def close(self) -> None:
        """Release what it uses."""


class ConnectFourGames:
    """N games against a rival, as a vector for `relaax.client.run`.

    In each step the player drops a stone in all games, then the rival. Where a stone ends a game, the other side begins
    the next one. At `reset` the rival begins in half of the games, drawn at random. A win is rewarded by 1 and a defeat
    by -1, for both sides.
    """

    single_observation_space = Dict(
        {
            "action_mask": Box(0, 1, shape=(7,), dtype="int8"),  # columns that are not full
            "stones": Box(0, 1, shape=(2, 6, 7), dtype="int8"),  # own stones, then the other side
        }
    )
    single_action_space = Discrete(7)
    autoreset_mode = "same_step"

    def __init__(self, count: int, rival: Rival, seed: int | None = None) -> None:
        self.boards = command.sibling_module(__package__, "boards").Boards(count)
        self.num_envs = count
        self.metadata = {"render_fps": 2}
        self._rival, self._rng = rival, np.random.default_rng(seed)
        self._won = np.zeros(count, np.bool_)  # where the rival's last stone won
        self._ended = np.zeros(count, np.bool_)  # where it ended the game

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin all games."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            self._rival.seed(seed)
        self.boards.clear(np.ones(self.num_envs, np.bool_))
        self._won[:] = self._ended[:] = False
        self.boards.drop(self._rival.begin(self), RIVAL, self._rng.random(self.num_envs) < 0.5)
        return self.observe(PLAYER), {}

    def step(self, columns: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Let both sides drop a stone. Return observations, rewards, terminated, truncated and infos."""
        won, full = self.boards.drop(columns, PLAYER)
        ended = won | full
        self.boards.clear(ended)
        answer = self._rival.move(self, 1.0 * self._won - won, ended | self._ended)
        self._won, full = self.boards.drop(answer, RIVAL)
        self._ended = self._won | full
        self.boards.clear(self._ended)
        truncated = np.zeros(self.num_envs, np.bool_)
        return self.observe(PLAYER), 1.0 * won - self._won, ended | self._ended, truncated, {}

    def observe(self, side: int) -> dict[str, Array]:
        """Return the observations of a side."""
        stones = self.boards.stones
        return {
            "action_mask": self.boards.valid().astype(np.int8),
            "stones": np.stack([stones == side, stones == -side], axis=1).astype(np.int8),
        }

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the first game, uint8 [192, 224, 3]: the player's stones are red."""
        colors = np.array([[255, 255, 255], [220, 40, 40], [40, 80, 220]], np.uint8)
        cells = colors[self.boards.stones[0, ::-1]]
        up, right = np.mgrid[-1:1:32j, -1:1:32j]
        inside = np.tile(up**2 + right**2 < 0.8, (6, 7))[..., None]
        return np.where(inside, cells.repeat(32, axis=0).repeat(32, axis=1), np.uint8(128))

    def close(self) -> None:
        """Disconnect the rival."""
        self._rival.close()


class ScriptedRival:
    """A rival that needs no server. `name`: random or blocks (see `boards.Scripted`)."""

    def __init__(self, name: str, seed: int | None) -> None:
        self._name = name
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        own = None if seed is None else (seed, 1)  # independent of the draws of the beginner
        self._player = command.sibling_module(__package__, "boards").Scripted(self._name, own)

    def begin(self, games: ConnectFourGames) -> Array:
        columns: Array = self._player.choose(games.boards, RIVAL)
        return columns

    def move(self, games: ConnectFourGames, rewards: Array, ended: Array) -> Array:
        return self.begin(games)

    def close(self) -> None: ...


class OlderSelf:
    """A rival that a server plays: its connection in exploit mode acts with older checkpoints.

    `settings`: of `VectorClient`.
    """

    def __init__(self, address: str, count: int, **settings: Any) -> None:
        self._client = VectorClient(
            address,
            environments=count,
            observation_space=ConnectFourGames.single_observation_space,
            action_space=ConnectFourGames.single_action_space,
            mode="exploit",
            **settings,
        )
        self._is_playing = False

    def seed(self, seed: int) -> None:
        """Do nothing: the server draws the actions."""

    def begin(self, games: ConnectFourGames) -> Array:
        if self._is_playing:
            self._client.reset(np.zeros(games.num_envs))
        self._is_playing = True
        columns: Array = self._client.init(games.observe(RIVAL))
        return columns

    def move(self, games: ConnectFourGames, rewards: Array, ended: Array) -> Array:
        columns: Array = self._client.step(rewards, games.observe(RIVAL), ended)
        return columns

    def close(self) -> None:
        self._client.disconnect()
