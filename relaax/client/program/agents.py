"""An agent within the process that knows nothing, to run environments without a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.address import LOCAL
from relaax.client.connection.failure import EnvironmentFault, Failure
from relaax.client.connection.values import values_of

_STREAM = (1,)
"""Spawn key of the agent's random numbers. An environment with the same seed draws from the stream without a key."""


class RandomAgent:
    """Has the methods of `Client` (`environments` None) and of `VectorClient` that act, and acts at random.

    Actions are drawn evenly from the action space; elements of a Box that have no bounds, from -1 to 1.
    """

    def __init__(self, action_space: Any, environments: int | None = None, seed: int | None = None) -> None:
        self._values = values_of(action_space)
        self._single = environments is None
        self._environments = environments or 1
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_STREAM))

    def __enter__(self) -> RandomAgent:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def init(self, states: Any) -> Any:
        """Return the first actions."""
        return self._act()

    def step(self, rewards: Any, states: Any, *ends: Any, **more: Any) -> Any:
        """Return the next actions."""
        return self._act()

    def send(self, reward: float, state: Any, **more: Any) -> Any:
        """Return the next action."""
        return self._act()

    def reset(self, reward: float, **more: Any) -> None:
        """End the episode; nothing is learned from it."""

    def _act(self) -> Any:
        leaves = [self._draw(element) for element in self._values.space.elements()]
        return self._values.take(iter(leaves), self._single)

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
    """A RandomAgent that refuses states which are not in the observation space. Raises EnvironmentFault."""

    def __init__(self, observation_space: Any, action_space: Any, environments: int | None, seed: int | None) -> None:
        super().__init__(action_space, environments, seed)
        self._observe = values_of(observation_space)

    def init(self, states: Any) -> Any:
        """Return the first actions."""
        self._check(states)
        return super().init(states)

    def step(self, rewards: Any, states: Any, *ends: Any, **more: Any) -> Any:
        """Return the next actions."""
        self._check(states)
        return super().step(rewards, states, *ends, **more)

    def _check(self, states: Any) -> None:
        try:
            self._observe.leaves(states, 0 if self._single else 1)
        except ValueError as error:
            raise EnvironmentFault(f"the observations are not in their space: {error}") from None


class Game(NamedTuple):
    """An episode to play: its number, counted from 0, the seed of the environment's reset, and the most steps."""

    number: int
    seed: int
    max_steps: int | None = None


class Player(Protocol):
    """What acts in an environment whose address is `local`. Values are those of the spaces of `relaax.rlx`."""

    def meet(self, observation_space: rlx.Space, action_space: rlx.Space, frame_skip: int) -> None:
        """Take note of the environment. Raises Failure if it cannot be played."""

    def games(self) -> Iterator[Game]:
        """Return the episodes to play, until there are enough."""

    def act(self, observation: Any, first: bool) -> Any:
        """Return the action for an observation. `first`: it begins an episode."""

    def ended(self, game: Game, episode: rlx.Episode, steps: int, cut: bool) -> None:
        """Note the outcome of a game.

        `steps`: number of steps of its environment, without no-ops. `cut`: whether the episode was cut off at its
        maximum number of steps.
        """


_player: ContextVar[Player | None] = ContextVar("player", default=None)


@contextlib.contextmanager
def playing(player: Player) -> Iterator[None]:
    """Let `player` act wherever the address `local` is given in this block."""
    token = _player.set(player)
    try:
        yield
    finally:
        _player.reset(token)


def current_player() -> Player:
    """Return the player of the block around. Raises Failure if there is none."""
    player = _player.get()
    if player is None:
        raise Failure(f"the address {LOCAL!r} is for programs that `relaax eval` starts; name an RLX server, HOST:PORT")
    return player


class LocalClient:
    """Has the methods of `Client` and, for one environment, of `VectorClient` that act. A player answers."""

    def __init__(self, player: Player, observation_space: Any, action_space: Any, is_vector: bool, frame_skip: int):
        self._player = player
        self._observe, self._act_values = values_of(observation_space), values_of(action_space)
        self._axes = 1 if is_vector else 0
        player.meet(self._observe.space, self._act_values.space, frame_skip)

    def __enter__(self) -> LocalClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass

    def init(self, states: Any) -> Any:
        """Return the first action."""
        return self._act(states, True)

    def step(self, rewards: Any, states: Any, *ends: Any, **more: Any) -> Any:
        """Return the next action, in a batch of one."""
        return self._act(states, False)

    def send(self, reward: float, state: Any, **more: Any) -> Any:
        """Return the next action."""
        return self._act(state, False)

    def reset(self, reward: float, **more: Any) -> None:
        """End the episode; nothing is learned from it."""

    def _act(self, states: Any, first: bool) -> Any:
        leaves = self._observe.leaves(states, self._axes)
        observation = self._observe.space.unflatten([leaf[0].copy() if self._axes else leaf for leaf in leaves])
        action = self._act_values.space.flatten(self._player.act(observation, first))
        return self._act_values.take((np.asarray(leaf)[None] for leaf in action), not self._axes)
