"""The lessons of a training: which one is in progress, and when the next one begins."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaax.lessons.values import Edition, ValueRange

_log = logging.getLogger(__name__)

RESTORED = 1_000
"""Increase of the edition's number by a restored checkpoint: more changes than were made since it was saved. So no
episode of the lost time counts.
"""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson. It ends at a mean return of its last `episodes` episodes, or at a share of the training's steps.

    name: for people. values: by name, of the parameters whose values differ from the whole training's.
    mean_return, progress: None in the last lesson; else one of them is given. `progress` is from 0 to 1.
    """

    name: str = ""
    values: Mapping[str, ValueRange] = field(default_factory=dict)
    mean_return: float | None = None
    episodes: int = 100
    progress: float | None = None


class Curriculum:
    """The parameters of environments, and the lesson in progress. Thread-safe.

    `values`: of all parameters, by name. `lessons`: in order; empty without a curriculum. A number that `set_number`
    has set replaces the values of all lessons.

    Only episodes that began in the current edition count for the end of a lesson: only they have the lesson's numbers.
    """

    def __init__(self, values: Mapping[str, ValueRange], lessons: Sequence[Lesson] = ()) -> None:
        self._values, self._lessons = dict(values), tuple(lessons) or (Lesson(),)
        self._lock = threading.Lock()
        self._lesson = 0
        self._number = 1
        self._numbers: dict[str, float] = {}  # set while the training runs
        self._returns: deque[float] = deque(maxlen=self._lessons[0].episodes)
        self._edition = self._current()

    @property
    def edition(self) -> Edition:
        """The current edition."""
        return self._edition

    @property
    def lesson(self) -> Lesson:
        """The lesson in progress."""
        return self._lessons[self._edition.lesson]

    @property
    def final_edition(self) -> Edition:
        """The values of the last lesson, by which policies are judged."""
        return Edition(1, len(self._lessons) - 1, {**self._values, **self._lessons[-1].values})

    @property
    def count(self) -> int:
        """Number of lessons; 1 without a curriculum."""
        return len(self._lessons)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the lesson's last episodes; None before the first."""
        returns = list(self._returns)
        return math.fsum(returns) / len(returns) if returns else None

    def record(self, episodes: Iterable[tuple[int, float]], progress: float) -> None:
        """Count episodes, as (number of the edition, return), and begin the next lesson if this one has ended.

        `progress`: the share of the training's steps that are done, 0 to 1.
        """
        with self._lock:
            for edition, episode_return in episodes:
                if edition == self._number:
                    self._returns.append(episode_return)
                    self._advance_if_learned()
            while (limit := self._lessons[self._lesson].progress) is not None and progress >= limit:
                self._advance(f"{100 * progress:.3g} % of the training are done")

    def set_number(self, name: str, number: float | None) -> None:
        """Set a parameter to a number in all lessons; None: to the values of the lessons again.

        Raises KeyError if there is no such parameter.
        """
        if name not in self._values:
            raise KeyError(name)
        with self._lock:
            if number is None:
                self._numbers.pop(name, None)
            else:
                self._numbers[name] = number
            self._renew()

    def as_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        with self._lock:
            return {
                "edition": self._number,
                "lesson": self._lesson,
                "name": self._lessons[self._lesson].name,
                "numbers": dict(self._numbers),
                "returns": list(self._returns),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `as_json` returned, as far as it fits this configuration. Raises ValueError and the like.

        The lesson is found by its name, or else by its index.
        """
        lesson, name = int(state["lesson"]), str(state["name"])
        names = [one.name for one in self._lessons]
        if name and name in names:
            lesson = names.index(name)
        numbers = {str(key): float(number) for key, number in state["numbers"].items() if key in self._values}
        returns, number = [float(one) for one in state["returns"]], int(state["edition"])
        with self._lock:
            self._lesson = min(max(lesson, 0), len(self._lessons) - 1)
            self._numbers, self._number = numbers, max(number, self._number) + RESTORED
            self._returns = deque(returns, maxlen=self._lessons[self._lesson].episodes)
            self._edition = self._current()

    def _advance_if_learned(self) -> None:
        lesson, returns = self._lessons[self._lesson], self._returns
        if lesson.mean_return is None or len(returns) < lesson.episodes:
            return
        mean = math.fsum(returns) / len(returns)
        if mean >= lesson.mean_return:
            self._advance(f"the mean return of {len(returns)} episodes is {mean:g}")

    def _advance(self, why: str) -> None:
        self._lesson += 1
        lesson = self._lessons[self._lesson]
        self._returns = deque(maxlen=lesson.episodes)
        self._renew()
        _log.info(
            "lesson %d of %d%s begins, because %s: %s",
            *(self._lesson + 1, len(self._lessons), f" ({lesson.name})" * bool(lesson.name), why, self._edition),
        )

    def _renew(self) -> None:
        self._number += 1
        self._edition = self._current()

    def _current(self) -> Edition:
        own = self._lessons[self._lesson].values
        constants = {name: ValueRange.constant(number) for name, number in self._numbers.items()}
        values = {name: constants.get(name, own.get(name, one)) for name, one in self._values.items()}
        return Edition(self._number, self._lesson, values)
