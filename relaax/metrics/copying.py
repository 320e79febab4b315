"""Copies of a growing TensorBoard run directory in a store, such as S3."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np

from relaax.checkpoint import NotFound, Store
from relaax.metrics.rate_limited_log import OutageLog

_log = logging.getLogger(__name__)

COPY_SECONDS = 60.0
"""Minimum seconds between two copies; longer if there is much to copy."""
BYTES_PER_SECOND = 1_000_000
"""Maximum average copy rate. A store takes whole files, so a file that has grown is copied from its beginning."""
_EVENTS = "events.out.tfevents.*"


class MetricsCopy:
    """A background thread that copies the event files of `directory` that have grown, and once more at the end.

    If the store is unavailable, the copy goes stale and a warning is logged; nothing else stops.
    """

    def __init__(self, directory: Path, store: Store, interval: float = COPY_SECONDS) -> None:
        self._directory = directory
        self._store = store
        self._interval = interval
        self._copied: dict[str, int] = {}
        self._outage = OutageLog(_log)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics copy", daemon=True)

    def start(self) -> None:
        """Start copying."""
        self._thread.start()

    def close(self) -> None:
        """Try once to copy the remaining data, then stop. Called once, after `start`."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        wait = self._interval
        while not self._stop.wait(wait):
            wait = max(self._interval, self._copy() / BYTES_PER_SECOND)
        self._copy()

    def _copy(self) -> int:
        """Copy the files that have grown and return the number of bytes copied."""
        done = 0
        try:
            for path in sorted(self._directory.glob(_EVENTS)):
                size = path.stat().st_size
                if size > self._copied.setdefault(path.name, self._size_in_store(path.name)):
                    # Data appended meanwhile is copied next time.
                    self._store.put(path.name, [np.memmap(path, np.uint8, "r", shape=(size,)).data])
                    self._copied[path.name] = size
                    done += size
        except Exception as error:  # training continues whatever the store and the file system do
            self._outage.failed("metrics cannot be copied to %s, retrying: %s", self._store.location, error)
        else:
            self._outage.succeeded("metrics are copied to %s again", self._store.location)
        return done

    def _size_in_store(self, name: str) -> int:
        """Return the size of a file's copy; ask the store if only an earlier process may have copied the file."""
        if name in self._copied:
            return self._copied[name]
        try:
            return self._store.size(name)
        except NotFound:
            return 0
