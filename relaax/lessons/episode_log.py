"""The record of all episodes with parameters of the server, as CSV beside the TensorBoard run."""

from __future__ import annotations

import csv
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

COLUMNS = ("global_step", "time", "actor", "joined", "number", "edition", "episode_return", "length")
"""Columns before the parameters. For `actor`, `joined` and `number` see `relaax.lessons.values.Draw`."""


class EpisodeLog:
    """A writer of the record. Thread-safe. After an error of the disk it writes nothing more, and logs the error.

    A file with other columns, of an earlier configuration, remains; the next free name is used.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Open `folder`/episodes.csv, or episodes-2.csv and so on. `names`: of the parameters."""
        self._lock = threading.Lock()
        self._header = [*COLUMNS, *names]
        self._file: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = next(path for path in _paths(folder) if self._fits(path))
            is_new = not path.exists() or not path.stat().st_size
            self._file = path.open("a", newline="", encoding="utf-8")
            if is_new:
                self._write([self._header])
        except OSError as error:
            self._stop(error)

    def add(self, global_step: int, episodes: Iterable[Any]) -> None:
        """Add episodes (`pb.EpisodeResult`) that ended."""
        now = f"{time.time():.3f}"
        with self._lock:
            try:
                self._write([global_step, now, *_row(episode)] for episode in episodes)
            except OSError as error:
                self._stop(error)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _fits(self, path: Path) -> bool:
        if not path.exists() or not path.stat().st_size:
            return True
        with path.open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file), None) == self._header

    def _write(self, rows: Iterable[Sequence[Any]]) -> None:
        if self._file is not None:
            csv.writer(self._file).writerows(rows)
            self._file.flush()

    def _stop(self, error: OSError) -> None:
        _log.warning("the record of episodes cannot be written: %s", error.strerror or error)
        self._file = None


def _row(episode: Any) -> list[Any]:
    own = episode.actor, episode.joined, episode.number, episode.edition, episode.episode_return, episode.length
    return [*own, *episode.parameters]


def _paths(folder: Path) -> Iterable[Path]:
    yield folder / "episodes.csv"
    number = 2
    while True:
        yield folder / f"episodes-{number}.csv"
        number += 1
