"""Returns and lengths of the episodes of a connection, from the rewards as sent by the environment."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class EpisodeCounter:
    """The current episode of each of N environments: return and length so far, and start time.

    Times are seconds of one clock.
    """

    def __init__(self, environments: int) -> None:
        self.returns = np.zeros(environments, np.float64)
        self._steps = 0
        self._before = np.zeros(environments, np.int64)  # steps before the episode
        self._begun = np.zeros(environments, np.float64)
        self._partial = np.zeros(environments, np.bool_)

    def start(self, partial: Mask | None, now: float = 0.0) -> None:
        """Start an episode in every environment; where `partial`, it was already in progress."""
        self._begun[:] = now
        self.returns[:] = 0
        self._before[:] = self._steps
        self._partial[:] = False if partial is None else partial

    def count(self, rewards: npt.NDArray[np.float64], valid: Mask | None) -> None:
        """Add the rewards of a step where `valid`, or everywhere if that is None.

        Rewards are those of RLX, up to `MAX_REWARD`: it takes 10^15 of these for a sum beyond `MAX_NUMBER`.
        """
        if valid is not None:
            rewards = np.where(valid, rewards, 0.0)
            self._before += ~valid
        self._steps += 1
        self.returns += rewards

    def begin(self, first: Mask, now: float) -> None:
        """Set the start time of episodes where `first`: they begin later than the previous ones ended."""
        self._begun[first] = now

    def end(self, ended: Mask, now: float = 0.0) -> Iterator[tuple[float, int, float]]:
        """Yield return, length and seconds of each ended episode that is not partial; reset all that ended."""
        for index in np.flatnonzero(ended).tolist():
            if not self._partial[index]:
                length = self._steps - int(self._before[index])
                yield float(self.returns[index]), length, now - float(self._begun[index])
        self.returns[ended] = 0
        self._before[ended] = self._steps
        self._begun[ended] = now
        self._partial[ended] = False
