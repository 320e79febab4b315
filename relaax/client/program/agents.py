"""Agents in this process: an agent with random actions, and the player of `relaax eval`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.address import LOCAL
from relaax.client.connection.failure import EnvironmentFault, Failure
from relaax.client.connection.values import values_of

_STREAM = (1,)
"""Spawn key of the agent's random numbers. An environment with the same seed uses the stream without a key."""


class _Agent:
    """An agent without training that has the methods of `Client` and `VectorClient`, based on `_act`."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def init(self, states: Any) -> Any:
        """Return the first actions."""
        return self._act(states, True)

    def step(self, rewards: Any, states: Any, *ends: Any, **more: Any) -> Any:
        """Return the next actions."""
        return self._act(states, False)

    def send(self, reward: float, state: Any, **more: Any) -> Any:
        """Return the next action."""
        return self._act(state, False)

    def reset(self, reward: float, **more: Any) -> None:
        """End the episode."""

    def _act(self, states: Any, first: bool) -> Any:
        raise NotImplementedError


class RandomAgent(_Agent):
    """An agent with random actions: for one environment (`environments` None), or for a vector.

    Actions are uniform over the action space. Elements of a Box without bounds are uniform from -1 to 1.
    """

    def __init__(self, action_space: Any, environments: int | None = None, seed: int | None = None) -> None:
        self._values = values_of(action_space)
        self._single = environments is None
        self._environments = environments or 1
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_STREAM))

    def _act(self, states: Any, first: bool) -> Any:
        return self._values.from_leaves(
            iter([self._draw(space) for space in self._values.space.elements()]), self._single
        )

    def _draw(self, space: rlx.ElementarySpace) -> npt.NDArray[Any]:
        shape = (self._environments, *space.shape)
        if isinstance(space, rlx.Discrete):
            return self._rng.integers(0, space.n, shape) + space.start
        if isinstance(space, rlx.MultiDiscrete):
            return self._rng.integers(0, space.nvec, shape)
        if not isinstance(space, rlx.Box):
            return self._rng.integers(0, 2, shape)
        low, high = np.maximum(space.low, -1e9), np.minimum(space.high, 1e9)
        low = np.where(np.isfinite(space.low), low, np.minimum(-1, high))
        high = np.where(np.isfinite(space.high), high, np.maximum(1, low))
        return self._rng.uniform(low, high, shape).astype(space.dtype)


class CheckingAgent(RandomAgent):
    """A RandomAgent that raises EnvironmentFault if a state is not in the observation space."""

    def __init__(self, observation_space: Any, action_space: Any, environments: int | None, seed: int | None) -> None:
        super().__init__(action_space, environments, seed)
        self._observe = values_of(observation_space)

    def _act(self, states: Any, first: bool) -> Any:
        try:
            self._observe.to_leaves(states, 0 if self._single else 1)
        except ValueError as error:
            raise EnvironmentFault(f"the observations are not in the observation space: {error}") from None
        return super()._act(states, first)


class Game(NamedTuple):
    """An episode to play: its number from 0, the seed of the environment's reset, and the maximum number of steps."""

    number: int
    seed: int
    max_steps: int | None = None


class Player(Protocol):
    """The agent for the address `local`. Its observations and actions are values of `relaax.rlx` spaces."""

    def set_environment(self, observation_space: rlx.Space, action_space: rlx.Space, frame_skip: int) -> None:
        """Set the spaces and frame skip of the environment. Raises Failure if it is not supported."""

    def games(self) -> Iterator[Game]:
        """Yield the episodes to play."""

    def act(self, observation: Any, first: bool) -> Any:
        """Return the action for an observation. `first`: whether it begins an episode."""

    def record_game(self, game: Game, episode: rlx.Episode, steps: int, cut: bool) -> None:
        """Record the outcome of a game.

        `steps`: number of environment steps, without no-ops. `cut`: whether the episode was cut off at its maximum
        number of steps.
        """


_player: ContextVar[Player | None] = ContextVar("player", default=None)


@contextlib.contextmanager
def playing(player: Player) -> Iterator[None]:
    """Use `player` for the address `local` in this block."""
    token = _player.set(player)
    try:
        yield
    finally:
        _player.reset(token)


def current_player() -> Player:
    """Return the player that `playing` has set. Raises Failure outside of `playing`."""
    player = _player.get()
    if player is None:
        raise Failure(f"the address {LOCAL!r} is only for programs of `relaax eval`: give an RLX server, HOST:PORT")
    return player


class LocalClient(_Agent):
    """An agent that passes the observations of one environment, or of a vector of one, to a player."""

    def __init__(self, player: Player, observation_space: Any, action_space: Any, is_vector: bool, frame_skip: int):
        self._player = player
        self._observe, self._actions = values_of(observation_space), values_of(action_space)
        self._axes = 1 if is_vector else 0
        player.set_environment(self._observe.space, self._actions.space, frame_skip)

    def _act(self, states: Any, first: bool) -> Any:
        leaves = self._observe.to_leaves(states, self._axes)
        observation = self._observe.space.unflatten([leaf[0].copy() if self._axes else leaf for leaf in leaves])
        action = self._actions.space.flatten(self._player.act(observation, first))
        return self._actions.from_leaves((np.asarray(leaf)[None] for leaf in action), not self._axes)
