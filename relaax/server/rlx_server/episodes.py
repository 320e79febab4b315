"""Counting the episodes of a connection, by the rewards as the environment sent them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class EpisodeCounter:
    """Return and length so far of the episode in each of N environments."""

    def __init__(self, environments: int) -> None:
        self.returns = np.zeros(environments, np.float64)
        self._lengths = np.zeros(environments, np.int64)
        self._partial = np.zeros(environments, np.bool_)

    def start(self, partial: Mask | None) -> None:
        """Every environment starts an episode; where `partial`, it was under way already."""
        self.returns[:] = 0
        self._lengths[:] = 0
        self._partial[:] = False if partial is None else partial

    def count(self, rewards: npt.NDArray[np.float64], valid: Mask) -> None:
        """One step; it counts where `valid`."""
        self.returns += np.where(valid, rewards, 0.0)
        self._lengths += valid

    def end(self, ended: Mask) -> Iterator[tuple[float, int]]:
        """Return and length of each whole episode among those that ended; they begin at zero again."""
        for index in np.flatnonzero(ended).tolist():
            if not self._partial[index]:
                yield float(self.returns[index]), int(self._lengths[index])
        self.returns[ended] = 0
        self._lengths[ended] = 0
        self._partial[ended] = False
