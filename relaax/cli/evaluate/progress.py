"""Show how far an evaluation is."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from relaax.console import shown
from relaax.evaluation.result import Played
from relaax.plain_console import PlainConsole

_log = logging.getLogger(__name__)

FIRST_REPORT_SECONDS = 30.0
LAST_REPORT_SECONDS = 600.0


class EvaluationProgress:
    """A progress bar with the mean so far, and a log line where no episode ends for long."""

    def __init__(self, bar: Progress, episodes: int) -> None:
        self._bar = bar
        self._episodes = episodes
        self._task = bar.add_task("playing", total=episodes)
        self._returns: list[float] = []
        self._wait = FIRST_REPORT_SECONDS
        self._next_report = time.monotonic() + self._wait

    def ended(self, played: Played) -> None:
        """Show an episode that has ended."""
        self._returns.append(played.episode_return)
        self._next_report = time.monotonic() + self._wait
        self._bar.update(self._task, advance=1, description=f"mean return {self._mean}")

    def under_way(self, number: int, steps: int) -> None:
        """Show an episode under way, and log it if no episode ends for long: 30 s, then twice as long."""
        what = f"episode {number + 1} at step {steps:,}"
        mean = f"mean return {self._mean}, " if self._returns else ""
        self._bar.update(self._task, description=mean + what)
        if time.monotonic() >= self._next_report:
            self._wait = min(2 * self._wait, LAST_REPORT_SECONDS)
            self._next_report = time.monotonic() + self._wait
            _log.warning("%d of %d episodes have ended; %s", len(self._returns), self._episodes, what)

    @property
    def _mean(self) -> str:
        return shown(sum(self._returns) / len(self._returns))


@contextlib.contextmanager
def shown_progress(episodes: int, enabled: bool) -> Iterator[EvaluationProgress]:
    """Show a progress bar on a terminal. Elsewhere, only log where no episode ends for long."""
    console = PlainConsole(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bar:
        yield EvaluationProgress(bar, episodes)
