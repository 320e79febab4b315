"""Counting the episodes of a connection, by the rewards as the environment sent them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class EpisodeCounter:
    """Return and length so far of the episode in each of N environments, and when it began.

    Times are seconds of one clock.
    """

    def __init__(self, environments: int) -> None:
        self.returns = np.zeros(environments, np.float64)
        self._steps = 0
        self._before = np.zeros(environments, np.int64)  # of these steps, those that are not of the episode
        self._begun = np.zeros(environments, np.float64)
        self._partial = np.zeros(environments, np.bool_)

    def start(self, partial: Mask | None, now: float = 0.0) -> None:
        """Every environment starts an episode; where `partial`, it was under way already."""
        self._begun[:] = now
        self.returns[:] = 0
        self._before[:] = self._steps
        self._partial[:] = False if partial is None else partial

    def count(self, rewards: npt.NDArray[np.float64], valid: Mask | None) -> None:
        """One step; it counts where `valid`, and everywhere where that is None.

        Rewards are those of RLX, up to `MAX_REWARD`: it would take 10^15 of these until a sum is beyond `MAX_NUMBER`.
        """
        if valid is not None:
            rewards = np.where(valid, rewards, 0.0)
            self._before += ~valid
        self._steps += 1
        self.returns += rewards

    def begin(self, first: Mask, now: float) -> None:
        """An episode begins where `first`, later than the one before it ended."""
        self._begun[first] = now

    def end(self, ended: Mask, now: float = 0.0) -> Iterator[tuple[float, int, float]]:
        """Return, length and seconds of each whole episode among those that ended; they begin at zero again."""
        for index in np.flatnonzero(ended).tolist():
            if not self._partial[index]:
                length = self._steps - int(self._before[index])
                yield float(self.returns[index]), length, now - float(self._begun[index])
        self.returns[ended] = 0
        self._before[ended] = self._steps
        self._begun[ended] = now
        self._partial[ended] = False
