"""Tell a container's health check that the agent has answered lately."""

from __future__ import annotations

import logging
import os
from pathlib import Path

logger = logging.getLogger("relaax.client")

VARIABLE = "RELAAX_ALIVE_FILE"
_SECONDS = 1.0


class Alive:
    """Touch the file that the environment variable RELAAX_ALIVE_FILE names, at most once a second; none if it is unset.

    `due`: the time, by the clock of whoever calls, from which on `answered` has something to do; infinite if never.
    """

    def __init__(self) -> None:
        name = os.environ.get(VARIABLE)
        self._file = Path(name) if name else None
        self.due = 0.0 if name else float("inf")

    def answered(self, now: float) -> None:
        """Note an answer at `now`, in seconds."""
        assert self._file is not None
        self.due = now + _SECONDS
        try:
            self._file.touch()
        except OSError as error:
            self.due = float("inf")
            logger.warning("cannot write %s, the file of %s: %s", self._file, VARIABLE, error.strerror)
