"""Count what happens while an environment runs, and sum it up."""

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
"""Set when the program ends while connections are under way in threads: each ends after its step."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What `run` did.

    `steps`: environment steps, over all environments. `episodes`: whole episodes that counted.
    `returns`: their returns, the last 100 if no number of episodes was asked for.
    `training_finished`: the server's sentence if it ended the run, else None.
    `spaces`: of one environment, as JSON, if that was all that was asked for. `report`: of a check.
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
    """Counts steps and episodes of N environments, and says when there are enough of them.

    A number of episodes is shared out among the environments: the first to end are not the first that came, or short
    episodes would be counted more often than they happen.
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
                raise ValueError(f"{name} is {number}: give a number of at least 1, or None for no end")
        self.steps = 0
        self.episodes = 0
        self.returns: deque[float] = deque(maxlen=episodes or RECENT_EPISODES)
        self._most_steps = steps
        self._most_episodes = episodes
        self._shares = None if episodes is None else [(episodes + i) // environments for i in range(environments)]
        self._on_episode = on_episode
        self._returns = np.zeros(environments)
        self._lengths = np.zeros(environments, np.int64)

    @property
    def enough(self) -> bool:
        """Whether the requested steps or episodes are reached, or the program is ending."""
        return (
            ending.is_set()
            or (self._most_steps is not None and self.steps >= self._most_steps)
            or (self._most_episodes is not None and self.episodes >= self._most_episodes)
        )

    def step(
        self, rewards: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_], void: npt.NDArray[np.bool_] | None
    ) -> list[Episode]:
        """Add a step of all environments, [N] each; the episodes that it ended. `void`: no step was taken there."""
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
        """Return what there is of the episode under way in an environment."""
        return Episode(environment, float(self._returns[environment]), int(self._lengths[environment]))

    def count(self, episodes: Sequence[Episode]) -> None:
        """Count whole episodes, as far as their environments have not had their share."""
        for episode in episodes:
            if self._shares is not None:
                if self._shares[episode.environment] == 0:
                    continue
                self._shares[episode.environment] -= 1
            self.episodes += 1
            self.returns.append(episode.episode_return)
            if self._on_episode is not None:
                self._on_episode(episode)


Reports = Callable[[dict[str, Any]], Mapping[str, float]] | Sequence[str]
"""Finds metrics in a step's infos, or names the entries of the infos that are metrics."""


def reporter(reports: Reports | None, scalars: Scalars | None) -> Callable[[dict[str, Any]], None]:
    """Return a function that notes in `scalars` the metrics that `reports` finds in a step's infos.

    Raises ValueError for names that cannot be metrics.
    """
    if reports is None:
        return lambda infos: None
    if isinstance(reports, str):
        raise ValueError(f"metrics is {reports!r}: give a list of names, or a function of the infos")
    find = reports if callable(reports) else _named([name for name in reports if check_name(name)])
    if scalars is None:
        return lambda infos: None

    def note(infos: dict[str, Any]) -> None:
        for name, value in find(infos).items():
            scalars.scalar(name, value)

    return note


def _named(names: Sequence[str]) -> Callable[[dict[str, Any]], Mapping[str, float]]:
    def find(infos: dict[str, Any]) -> dict[str, float]:
        found = {name: _values(infos, name) for name in names}
        return {name: float(values.mean()) for name, values in found.items() if len(values)}

    return find


def _values(infos: dict[str, Any], name: str) -> npt.NDArray[np.float64]:
    """Return the values of one entry that can be sent, of every environment that has it or whose episode just ended."""
    parts = []
    for source in (infos, infos.get("final_info", {})):
        if name in source:
            try:
                values = np.asarray(source[name], np.float64).reshape(-1)
            except (TypeError, ValueError):
                raise ValueError(
                    f"metric {name!r}: the environment says {source[name]!r}, which is no number"
                ) from None
            given = source.get(f"_{name}")  # which environments of a vector said it
            parts.append(values if given is None else values[np.asarray(given, np.bool_).reshape(-1)])
    values = np.concatenate(parts) if parts else np.zeros(0)
    return values[np.abs(values) <= MAX_NUMBER]
