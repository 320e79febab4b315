"""Agents in this process: an agent with random actions, and the player of `relaax eval`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.address import LOCAL
from relaax.client.connection.failure import EnvironmentFault, Failure
from relaax.client.connection.values import values_of
from relaax.rlx.action_masks import ACTION_MASK, choices_of, mask_leaf, read_mask

Array = npt.NDArray[np.float64]

_STREAM = (1,)
"""Spawn key of the agent's random numbers. An environment with the same seed uses the stream without a key."""


class _Agent:
    """An agent without training that has the methods of `Client` and `VectorClient`, based on `_act`."""

    @property
    def parameters(self) -> dict[str, Any]:
        """No parameters: there is no server."""
        return {}

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def init(self, states: Any, idle: Any = None) -> Any:
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

    Actions are uniform over the action space. Elements of a Box without bounds are uniform from -1 to 1. If the states
    have an action mask (the part `action_mask` of a Dict), choices are uniform over the valid actions, and over all
    actions where a mask allows none.

    `masked`: whether the states have a mask. Only then are the states read.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, environments: int | None = None, seed: int | None = None
    ) -> None:
        self._observe, self._values = values_of(observation_space), values_of(action_space)
        self._single = environments is None
        self._environments = environments or 1
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_STREAM))
        self._mask = mask_leaf(ACTION_MASK, self._observe.space, self._values.space)
        self.masked = self._mask is not None

    def _act(self, states: Any, first: bool) -> Any:
        return self.draw(self._observe.to_leaves(states, 0 if self._single else 1) if self.masked else None)

    def draw(self, observed: rlx.Leaves | None) -> Any:
        """Return random actions. `observed`: the leaves of the states; None if all actions are valid."""
        elements, leaves = self._values.space.elements(), []
        if self._mask is None or observed is None:
            return self._values.from_leaves(iter([self._draw(space) for space in elements]), self._single)
        mask = observed[self._mask]
        valid, _ = read_mask(mask[None] if self._single else mask, choices_of(self._values.space))
        scores = np.where(valid, self._rng.random(valid.shape), -1.0)
        for space in elements:
            counts = choices_of(space)
            own, scores = scores[:, : sum(counts)], scores[:, sum(counts) :]
            leaves.append(self._draw_largest(space, own, counts) if counts else self._draw(space))
        return self._values.from_leaves(iter(leaves), self._single)

    def _draw_largest(self, space: rlx.ElementarySpace, scores: Array, counts: Sequence[int]) -> npt.NDArray[Any]:
        """Return the actions with the largest scores, float64 [N, sum(counts)], of each choice."""
        parts = np.split(scores, np.cumsum(counts)[:-1], axis=1)
        columns = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        return columns[:, 0] + space.start if isinstance(space, rlx.Discrete) else columns

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

    def _act(self, states: Any, first: bool) -> Any:
        try:
            self._observe.to_leaves(states, 0 if self._single else 1)
        except ValueError as error:
            raise EnvironmentFault(f"the observations are not in the observation space: {error}") from None
        return super()._act(states, first)


class Game(NamedTuple):
    """An episode to play: its number from 0, the seed of the environment's reset, and the maximum number of steps.

    `parameters`: of the environment, by name, as a server sets them.
    """

    number: int
    seed: int
    max_steps: int | None = None
    parameters: Mapping[str, float] = MappingProxyType({})


class Player(Protocol):
    """The agent for the address `local`. Its observations and actions are values of `relaax.rlx` spaces."""

    def set_environment(self, observation_space: rlx.Space, action_space: rlx.Space, frame_skip: int) -> None:
        """Set the spaces and frame skip of the environment. Raises Failure if it is not supported."""

    def games(self) -> Iterator[Game]:
        """Yield the episodes to play."""

    def act(self, observation: Any, first: bool, place: int) -> Any:
        """Return the action for an observation. `first`: whether it begins an episode.

        `place`: index among the agents that play the game together.
        """

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
    """An agent that passes the observations of one environment, or of a vector, to a player.

    `environments`: their number in the vector; None for one environment. `is_reset_by_step`: whether the step after the
    end of an episode resets the environment and ignores the action (mode NEXT_STEP).
    """

    def __init__(
        self,
        player: Player,
        observation_space: Any,
        action_space: Any,
        environments: int | None,
        frame_skip: int,
        is_reset_by_step: bool = False,
    ) -> None:
        self._player = player
        self._observe, self._actions = values_of(observation_space), values_of(action_space)
        self._single = environments is None
        self._is_reset_by_step = is_reset_by_step
        count = environments or 1
        self._leaves = [np.zeros((count, *part.shape), part.dtype) for part in self._actions.space.elements()]
        self._away = np.zeros(count, np.bool_)
        self.game = Game(0, 0)
        player.set_environment(self._observe.space, self._actions.space, frame_skip)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the game, for each environment."""
        given = self.game.parameters
        if self._single:
            return dict(given)
        return {name: np.full(len(self._away), value) for name, value in given.items()}

    def init(self, states: Any, idle: Any = None) -> Any:
        """Return the first actions."""
        self._away[:] = idle is not None and idle
        return self._play(states, ~self._away, ~self._away)

    def step(self, rewards: Any, states: Any, *ends: Any, idle: Any = None, **more: Any) -> Any:
        """Return the next actions."""
        ended = np.logical_or(*ends) if ends else np.zeros_like(self._away)
        wanted = np.ones_like(self._away) if idle is None else ~idle
        if self._is_reset_by_step:
            wanted = wanted & ~ended
        first = wanted & (self._away | ended)
        self._away = (self._away | ended) & ~wanted
        return self._play(states, wanted, first)

    def send(self, reward: float, state: Any, **more: Any) -> Any:
        """Return the next action."""
        return self._play(state, ~self._away, self._away)

    def _play(self, states: Any, wanted: npt.NDArray[np.bool_], first: npt.NDArray[np.bool_]) -> Any:
        leaves = self._observe.to_leaves(states, 0 if self._single else 1)
        for index in np.flatnonzero(wanted).tolist():
            own = [leaf if self._single else leaf[index].copy() for leaf in leaves]
            action = self._player.act(self._observe.space.unflatten(own), bool(first[index]), index)
            for leaf, part in zip(self._leaves, self._actions.space.flatten(action), strict=True):
                leaf[index] = part
        return self._actions.from_leaves(iter(self._leaves), self._single)
