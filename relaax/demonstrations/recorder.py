"""A recorder of the whole episodes of a connection, from what its agent gets and returns. No I/O."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Leaves, StepResult
from relaax.demonstrations.columns import StepColumns

Mask = npt.NDArray[np.bool_]
Rows = list[npt.NDArray[np.generic]]


class _Episode:
    """An episode in progress. `next`: the observation and the action whose outcome has not come yet."""

    def __init__(self) -> None:
        self.next: tuple[Rows, Rows] | None = None
        self.observations: list[Rows] = []
        self.actions: list[Rows] = []
        self.chosen: list[bool] = []
        self.rewards: list[float] = []


class EpisodeRecorder:
    """A recorder of N environments. Call `begin`, then alternately `step` and `act`; `end` if the client resets.

    `add` receives each whole episode. Episodes that were interrupted, or that were in progress before the connection,
    are left out.
    """

    def __init__(self, environments: int, add: Callable[[StepColumns], None]) -> None:
        self._add = add
        self._episodes: list[_Episode | None] = [None] * environments  # None: it is not recorded
        self._everywhere: Mask = np.ones(environments, np.bool_)

    def begin(self, partial: Mask | None) -> None:
        """Abandon all episodes, and begin new ones, except where `partial`, bool [N]: they have begun before."""
        for index in range(len(self._episodes)):
            self._episodes[index] = None if partial is not None and partial[index] else _Episode()

    def act(self, observations: Leaves, actions: Leaves, wanted: Mask | None = None) -> None:
        """Add observations and actions, leaves [N, ...], where `wanted`, bool [N]; None: everywhere."""
        for index in np.flatnonzero(self._everywhere if wanted is None else wanted).tolist():
            episode = self._episodes[index]
            if episode is not None:
                episode.next = [leaf[index].copy() for leaf in observations], [leaf[index].copy() for leaf in actions]

    def step(self, step: StepResult) -> None:
        """Add the outcome of the last actions."""
        for index in np.flatnonzero(step.acted).tolist():
            episode = self._episodes[index]
            if episode is None or episode.next is None:
                continue
            observation, action = episode.next
            is_chosen = step.chosen is not None and step.actions is not None and bool(step.chosen[index])
            if is_chosen:
                assert step.actions is not None
                action = [leaf[index].copy() for leaf in step.actions]
            episode.next = None
            episode.observations.append(observation)
            episode.actions.append(action)
            episode.chosen.append(is_chosen)
            episode.rewards.append(float(step.rewards[index]))
        for index in np.flatnonzero(step.restart).tolist():
            if step.ended[index]:
                self._end(index, step)
            self._episodes[index] = _Episode()

    def _end(self, index: int, step: StepResult) -> None:
        episode = self._episodes[index]
        if episode is None or not episode.rewards:
            return
        final, is_truncated = None, bool(step.truncated[index] and not step.terminated[index])
        if is_truncated:
            if step.final_observations is None:
                return
            final = [leaf[index : index + 1].copy() for leaf in step.final_observations]
        self._add(
            StepColumns(
                _stacked(episode.observations),
                _stacked(episode.actions),
                np.array(episode.chosen, np.bool_),
                np.array(episode.rewards, np.float64),
                terminated=not is_truncated,
                truncated=is_truncated,
                final=final,
            )
        )


def _stacked(rows: list[Rows]) -> Leaves:
    return [np.stack(leaves) for leaves in zip(*rows, strict=True)]
