"""A writer of whole episodes to the Parquet files of a folder."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from relaax.demonstrations.columns import RecordedSpaces, StepColumns
from relaax.files import write_whole

_log = logging.getLogger(__name__)

LARGE = 32 * 2**20
"""Bytes of episodes after which they are written at once."""
FIRST_SECONDS, LAST_SECONDS = 5.0, 300.0
"""The interval between two files grows from the first to the last: a tenth of the time since the start. So short
recordings are complete soon, and long ones do not have thousands of files.
"""


class EpisodeFiles:
    """The files of one writer in a folder: each appears complete, under a name that no other writer uses.

    After an error of the disk nothing more is written, and the error is logged: a training does not depend on it.
    """

    def __init__(self, folder: Path, description: RecordedSpaces, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._description, self._clock = folder, description, clock
        self._name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"
        self._files = self._episodes = self._bytes = 0
        self._waiting: list[tuple[str, StepColumns]] = []
        self._started_at = self._written_at = clock()
        self._failed = False

    def add(self, episode: StepColumns) -> None:
        """Add a whole episode, to be written later."""
        if self._failed:
            return
        self._waiting.append((f"{self._name}-{self._episodes}", episode))
        self._episodes += 1
        self._bytes += sum(leaf.nbytes for leaf in (*episode.observations, *episode.actions))

    def write_if_due(self) -> None:
        """Write the episodes if they are large, or if the last file is old."""
        if not self._waiting:
            return
        now = self._clock()
        interval = min(max((now - self._started_at) / 10, FIRST_SECONDS), LAST_SECONDS)
        if self._bytes >= LARGE or now - self._written_at >= interval:
            self.write()

    def write(self) -> None:
        """Write the episodes that were added since the last file."""
        if not self._waiting:
            return
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._written_at = self._clock()
        path = self._folder / f"{self._name}-{self._files}.parquet"
        self._files += 1
        content = pa.BufferOutputStream()
        pq.write_table(self._description.table(waiting), content, compression="zstd")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, [memoryview(content.getvalue())])
        except OSError as error:
            self._failed = True
            reason = error.strerror or error
            _log.error("recording ends, as %s cannot be written: %s", path, reason)
            return
        steps, total = sum(len(each) for _, each in waiting), sum(each.episode_return for _, each in waiting)
        _log.info("episodes recorded: %d, steps: %d, mean return: %g", len(waiting), steps, total / len(waiting))
