"""Counts of a run: steps, episodes, returns, and metrics in the infos of steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relaax.rlx import Episode

if TYPE_CHECKING:
    from relaax.client.program.check_report import CheckReport

from collections.abc import Mapping
from typing import Any

from relaax.client.connection.scalars import Scalars, check_name
from relaax.rlx.messages import MAX_NUMBER

RECENT_EPISODES = 100

ending = threading.Event()
"""Set when the program exits while threads of connections are running. Each ends after its current step."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The result of `run`.

    `steps`: environment steps, over all environments. `episodes`: number of whole episodes that counted. `returns`:
    their returns; only the last 100 if `run` had no limit of episodes. `training_finished`: the server's message if the
    end of training ended the run, else None. `spaces`: spaces of one environment as JSON, after a probe. `report`: the
    report of a check.
    """

    episodes: int
    steps: int
    returns: tuple[float, ...]
    seconds: float
    training_finished: str | None = None
    spaces: str | None = None
    report: CheckReport | None = None

    @property
    def mean_return(self) -> float | None:
        """Mean of `returns`; None if no episode ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None


class Tally:
    """Counts of steps and episodes of N environments, up to limits.

    A limit of episodes is divided among the environments. Otherwise short episodes, which end first, would be counted
    more often than they occur.
    """

    def __init__(
        self,
        environments: int,
        *,
        episodes: int | None = None,
        steps: int | None = None,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        for name, number in (("episodes", episodes), ("steps", steps)):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}: it must be at least 1, or None for no limit")
        self.steps = 0
        self.episodes = 0
        self.is_over = False
        self.returns: deque[float] = deque(maxlen=episodes or RECENT_EPISODES)
        self._most_steps = steps
        self._most_episodes = episodes
        self._shares = None if episodes is None else [(episodes + i) // environments for i in range(environments)]
        self._on_episode = on_episode
        self._returns = np.zeros(environments)
        self._lengths = np.zeros(environments, np.int64)

    @property
    def is_complete(self) -> bool:
        """Whether a limit is reached, or the program is exiting."""
        return (
            ending.is_set()
            or (self._most_steps is not None and self.steps >= self._most_steps)
            or (self._most_episodes is not None and self.episodes >= self._most_episodes)
        )

    def step(
        self, rewards: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_], void: npt.NDArray[np.bool_] | None
    ) -> list[Episode]:
        """Add a step of all environments, arrays of shape [N]. Return the episodes that it ended.

        `void`: true where no step was taken; None if it is all false.
        """
        if void is None:
            self._returns += rewards
            self._lengths += 1
            self.steps += len(rewards)
        else:
            taken = ~void
            self._returns[taken] += rewards[taken]
            self._lengths[taken] += 1
            self.steps += int(taken.sum())
        if not np.count_nonzero(ended):
            return []
        over = [Episode(int(i), float(self._returns[i]), int(self._lengths[i])) for i in np.flatnonzero(ended)]
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        return over

    def unfinished(self, environment: int) -> Episode:
        """Return the current, unfinished episode of an environment."""
        return Episode(environment, float(self._returns[environment]), int(self._lengths[environment]))

    def count(self, episodes: Sequence[Episode]) -> None:
        """Count whole episodes, up to the share of each environment."""
        for episode in episodes:
            if self._shares is not None:
                if self._shares[episode.environment] == 0:
                    continue
                self._shares[episode.environment] -= 1
            self.episodes += 1
            self.returns.append(episode.episode_return)
            if self._on_episode is not None:
                self._on_episode(episode)


class GameTally(Tally):
    """Counts of one game that several agents play together. `is_over`: whether it has ended."""

    def __init__(self, agents: int, steps: int | None) -> None:
        super().__init__(agents, steps=steps, on_episode=self._add)
        self._total = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the game has ended, a limit is reached, or the program is exiting."""
        return self.is_over or super().is_complete

    def game(self) -> Episode:
        """Return the game as an episode, with the mean of the agents' returns. Unfinished episodes count."""
        agents = len(self._returns)
        return Episode(0, (self._total + float(self._returns.sum())) / agents, max(1, round(self.steps / agents)))

    def _add(self, episode: Episode) -> None:
        self._total += episode.episode_return


Reports = Callable[[dict[str, Any]], Mapping[str, float]] | Sequence[str]
"""A function that returns metrics from a step's infos, or the names of entries of the infos that are metrics."""


def reporter(reports: Reports | None, scalars: Scalars | None) -> Callable[[dict[str, Any]], None]:
    """Return a function that records in `scalars` the metrics of a step's infos that `reports` selects.

    Raises ValueError for names that cannot be metrics.
    """
    if reports is None:
        return lambda infos: None
    if isinstance(reports, str):
        raise ValueError(f"metrics is {reports!r}: give a list of names, or a function of the infos")
    names = [] if callable(reports) else [name for name in reports if check_name(name)]
    if scalars is None:
        return lambda infos: None

    def note(infos: dict[str, Any]) -> None:
        for name, value in (reports(infos) if callable(reports) else _means(infos, names)).items():
            scalars.scalar(name, value)

    return note


def _means(infos: dict[str, Any], names: Sequence[str]) -> dict[str, float]:
    found = {name: _values(infos, name) for name in names}
    return {name: float(values.mean()) for name, values in found.items() if len(values)}


def _values(infos: dict[str, Any], name: str) -> npt.NDArray[np.float64]:
    """Return the values of one entry, also from final infos. Values that cannot be sent are dropped."""
    parts = []
    for source in (infos, infos.get("final_info", {})):
        if name in source:
            try:
                values = np.asarray(source[name], np.float64).reshape(-1)
            except (TypeError, ValueError):
                text = f"metric {name!r}: the environment returned {source[name]!r}, which is not a number"
                raise ValueError(text) from None
            given = source.get(f"_{name}")  # the environments of a vector that have it
            parts.append(values if given is None else values[np.asarray(given, np.bool_).reshape(-1)])
    values = np.concatenate(parts) if parts else np.zeros(0)
    return values[np.abs(values) <= MAX_NUMBER]
