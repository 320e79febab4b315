"""The rows of a connection: states, outcomes and actions of agents, one row for each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from relaax.client import EnvironmentFault
from relaax.client.connection.values import copy_value, reward_of, values_of
from relaax.rlx.value_mismatch import ValueMismatch


class Rows:
    """The rows of `count` agents with equal spaces.

    `clear` begins a step: then all agents wait. `metrics`: names of entries of the agents' infos to keep.

    `states`: a batch. The rows of waiting agents have no meaning. `rewards`, `terminated`, `truncated`, `idle`: arrays
    of shape [N]. `final_states`: an object array with the last states of truncated episodes.
    """

    def __init__(self, observation_space: Any, action_space: Any, count: int, metrics: Collection[str] = ()) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._observe, self._act = values_of(observation_space), values_of(action_space)
        self._leaves = [np.zeros((count, *part.shape), part.dtype) for part in self._observe.space.elements()]
        self._actions: list[Any] = [None] * count
        self._metrics = metrics
        self.clear()

    def __len__(self) -> int:
        return len(self._actions)

    def __getitem__(self, index: int) -> Row:
        return Row(self, index)

    def clear(self) -> None:
        """Begin a step: mark all agents as waiting."""
        count = len(self)
        self.rewards = np.zeros(count)
        self.terminated, self.truncated = np.zeros((2, count), np.bool_)
        self.idle = np.ones(count, np.bool_)
        self.final_states = np.full(count, None, object)
        self.infos: dict[str, Any] = {}
        for name in self._metrics:
            self.infos[name], self.infos[f"_{name}"] = np.full(count, None, object), np.zeros(count, np.bool_)

    @property
    def states(self) -> Any:
        """The states of all rows, as a batch."""
        return self._observe.from_leaves(iter(self._leaves), False)

    @property
    def has_news(self) -> bool:
        """Whether an agent wants an action, or its episode has ended."""
        return not (self.idle & ~self.terminated & ~self.truncated).all()

    def set_actions(self, actions: Any) -> None:
        """Store the requested actions. `actions`: a batch, in which the rows of waiting agents have no meaning."""
        batch = self._act.to_leaves(actions, 1)
        for index in np.flatnonzero(~self.idle):
            self._actions[index] = self._act.from_leaves(iter([leaf[index : index + 1] for leaf in batch]), True)

    def action(self, index: int) -> Any:
        """Return the action of one row."""
        return self._actions[index]

    def request(self, index: int, agent: Any, state: Any) -> None:
        """Request an action of an agent in this state. Raises EnvironmentFault for a state outside of the space."""
        self.idle[index] = False
        try:
            for leaf, part in zip(self._leaves, self._observe.to_leaves(state, 0), strict=True):
                leaf[index] = part
        except ValueMismatch as mismatch:
            raise EnvironmentFault(f"the observation of {agent} is not in its space: {mismatch}") from None

    def end(self, index: int, agent: Any, state: Any, terminated: bool, truncated: bool) -> None:
        """End an episode in this state. Raises EnvironmentFault if it was truncated, and the state is not in the space.

        The agent's next episode, if any, begins with `request`.
        """
        self.terminated[index], self.truncated[index] = terminated, truncated and not terminated
        if self.truncated[index]:
            try:
                self.final_states[index] = copy_value(self._observe, state)
            except ValueMismatch as mismatch:
                raise EnvironmentFault(f"the last observation of {agent} is not in its space: {mismatch}") from None

    def record(self, index: int, agent: Any, reward: Any, info: Mapping[str, Any]) -> None:
        """Add a reward, and keep the infos that are metrics. Raises EnvironmentFault for an invalid reward."""
        try:
            self.rewards[index] += reward_of(reward)
        except ValueError as error:
            raise EnvironmentFault(f"agent {agent}: {error}") from None
        for name in self._metrics:
            if name in info:
                self.infos[name][index], self.infos[f"_{name}"][index] = info[name], True


class Row:
    """One agent's row."""

    def __init__(self, rows: Rows, index: int) -> None:
        self._rows, self._index = rows, index

    def act(self, agent: Any, state: Any, reward: Any, info: Mapping[str, Any]) -> None:
        """Request an action. `reward`: sum since the agent's last action."""
        self._rows.record(self._index, agent, reward, info)
        self._rows.request(self._index, agent, state)

    def end(self, agent: Any, state: Any, reward: Any, flags: tuple[bool, bool], info: Mapping[str, Any]) -> None:
        """End the agent's episode. `flags`: whether it was terminated, and whether it was truncated."""
        self._rows.record(self._index, agent, reward, info)
        self._rows.end(self._index, agent, state, *flags)

    def action(self) -> Any:
        """Return the requested action."""
        return self._rows.action(self._index)
