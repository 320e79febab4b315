"""Environments that play, wait, end and begin at random, each at its own time, and the ledger of their actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx import Autoreset

Array = npt.NDArray[Any]
VOID = float("nan")


@dataclass
class Outcomes:
    """A message with the outcomes of actions. Void rows are NaN."""

    rewards: Array
    states: Array
    terminated: Array
    truncated: Array
    finals: Array
    first: Array
    idle: Array


@dataclass
class _Place:
    """One environment."""

    autoreset: Autoreset
    playing: bool = False
    number: int | None = None
    """The action in progress."""
    chosen_on: Any = None
    pending: float = 0.0
    """Rewards since that action."""
    state: Any = None
    sum: float = 0.0
    length: int = 0
    is_lost: bool = False
    """Whether the action was lost with a connection."""
    is_partial: bool = False
    """Whether the server counts the next end of an episode as partial."""


class TurnWorld:
    """N environments, and what must be in the journals of `turn_algorithm`. `modes`: their autoreset modes.

    `begin` and `outcomes` make the messages. `reset` makes the message before another `begin`. After the answer, `take`
    gets the actions. If the answer was lost with the connection, `lose` comes before it.
    """

    def __init__(self, modes: Sequence[Autoreset], rng: np.random.Generator) -> None:
        self._rng = rng
        self._places = [_Place(mode) for mode in modes]
        self._serial = 0
        self._new: list[tuple[int, dict[str, Any]]] = []
        self._new_episodes: list[tuple[float, int]] = []
        self._wanted: list[int] = []
        self._begun: list[int] = []
        self.completed: dict[int, dict[str, Any]] = {}
        """Entries that must be in a journal, by the number of the action."""
        self.uncertain: dict[int, dict[str, Any]] = {}
        """Entries that may be there, because their message was lost with its connection."""
        self.episodes: list[tuple[float, int]] = []
        self.uncertain_episodes: list[tuple[float, int]] = []

    def begin(self, share: float = 0.7) -> tuple[Array, Array]:
        """Return the states and idle masks of an init. A share of the environments is not idle.

        The agent gets the outcomes of a reset with the init, so both are delivered or lost together.
        """
        self._wanted, self._begun = [], []
        states, idle = self._void_states(), self._rng.random(len(self._places)) >= share
        for i, place in enumerate(self._places):
            place.playing = place.is_lost = place.is_partial = False
            if not idle[i]:
                states[i] = self._start(i)
        return states, idle

    def outcomes(self) -> Outcomes:
        """Return the next message."""
        n = len(self._places)
        self._new, self._new_episodes, self._wanted, self._begun = [], [], [], []
        made = Outcomes(np.full(n, VOID), self._void_states(), *(np.zeros(n, bool) for _ in range(2)),
                        self._void_states(), *(np.zeros(n, bool) for _ in range(2)))  # fmt: skip
        for i, place in enumerate(self._places):
            if not place.playing:
                if self._draw(0.5):
                    made.first[i] = True
                    made.states[i] = self._start(i)
                else:
                    made.idle[i] = True
            elif self._draw(0.4):
                place.pending += self._reward()
                made.idle[i] = True
            else:
                self._complete(i, place, made)
        return made

    def reset(self) -> tuple[Array, Array, Array, Array]:
        """Return rewards, truncations, final states and returns of all episodes, which end."""
        n = len(self._places)
        self._new, self._new_episodes, self._wanted, self._begun = [], [], [], []
        rewards, cut, finals, returns = np.full(n, VOID), np.zeros(n, bool), self._void_states(), np.zeros(n)
        for i, place in enumerate(self._places):
            if place.playing:
                cut[i], finals[i] = self._draw(0.5), self._state(i)
                rewards[i] = self._end_action(i, place, not cut[i], cut[i], finals[i])
                returns[i] = place.sum
                self._end_episode(place)
        return rewards, cut, finals, returns

    def take(self, actions: Array) -> None:
        """Begin the actions of the environments that want one. The message was delivered if it was not lost."""
        self.completed.update(self._new)
        self.episodes += self._new_episodes
        self._new, self._new_episodes = [], []
        for i in self._wanted:
            place = self._places[i]
            place.number, place.chosen_on, place.pending = int(actions[i]), place.state, 0.0  # type: ignore[index]

    def lose(self) -> None:
        """Record that the message and the actions in progress were lost with their connection."""
        self.uncertain.update(self._new)
        self.uncertain_episodes += self._new_episodes
        self._new, self._new_episodes = [], []
        for i, place in enumerate(self._places):
            place.is_partial = place.playing and i not in self._begun
            place.is_lost = place.playing and i not in self._wanted

    def check(self, entries: Iterable[dict[str, Any]]) -> int:
        """Check the journals of all agents, and return the number of actions."""
        found: dict[int, dict[str, Any]] = {}
        episodes: Counter[tuple[float, int]] = Counter()
        for entry in entries:
            if "return" in entry:
                episodes[entry["return"], entry["length"]] += 1
                continue
            assert entry["number"] not in found, "an outcome reached an agent twice"
            found[entry["number"]] = entry
        assert found.keys() >= self.completed.keys(), "outcomes did not reach the agent"
        assert found.keys() <= self.completed.keys() | self.uncertain.keys(), "the agent got outcomes of no action"
        expected = self.uncertain | self.completed
        for number, entry in found.items():
            assert entry == expected[number]
        required = Counter(self.episodes)
        assert required - episodes == Counter(), "whole episodes were not recorded"
        assert episodes - required - Counter(self.uncertain_episodes) == Counter(), "wrong episodes were recorded"
        return len(found)

    def _complete(self, i: int, place: _Place, made: Outcomes) -> None:
        ends = place.autoreset is not Autoreset.DISABLED and self._draw(0.3)
        state = self._state(i)
        made.terminated[i] = ends and self._draw(0.5)
        made.truncated[i] = ends and not made.terminated[i]
        made.rewards[i] = self._end_action(i, place, made.terminated[i], made.truncated[i], state)
        if not ends:
            made.states[i] = place.state = state
            self._wanted.append(i)
            return
        self._end_episode(place)
        made.idle[i] = self._draw(0.5)
        if place.autoreset is Autoreset.NEXT_STEP:
            made.states[i] = state
        else:
            made.finals[i] = state
            if not made.idle[i]:
                made.states[i] = self._start(i)

    def _end_action(self, i: int, place: _Place, over: bool, cut: bool, after: Array) -> float:
        reward = place.pending + self._reward()
        place.sum += reward
        place.length += 1
        assert place.number is not None
        if place.is_lost:  # its server does not know the action
            if not (over or cut):
                place.is_lost = False
            return reward
        entry = {
            "number": place.number,
            "reward": reward,
            "terminated": bool(over),
            "truncated": bool(cut),
            "chosen_on": place.chosen_on.tolist(),
            "after": None if over else after.tolist(),
        }
        self._new.append((place.number, entry))
        return reward

    def _end_episode(self, place: _Place) -> None:
        if not place.is_lost:
            if not place.is_partial:
                self._new_episodes.append((place.sum, place.length))
            place.is_partial = False
        place.playing = place.is_lost = False
        place.sum, place.length = 0.0, 0

    def _start(self, i: int) -> Array:
        place = self._places[i]
        place.playing, place.sum, place.length = True, 0.0, 0
        place.state = self._state(i)
        self._wanted.append(i)
        self._begun.append(i)
        return place.state  # type: ignore[no-any-return]

    def _state(self, i: int) -> Array:
        self._serial += 1
        return np.array([i, self._serial], np.float32)

    def _reward(self) -> float:
        return float(self._rng.integers(1, 2**30))

    def _void_states(self) -> Array:
        return np.full((len(self._places), 2), VOID, np.float32)

    def _draw(self, chance: float) -> bool:
        return bool(self._rng.random() < chance)
