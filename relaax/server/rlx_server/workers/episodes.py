"""Measurements of the episodes of a connection: returns, lengths and durations. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class EpisodeCounter:
    """The current episodes of N environments: return, length and start time (in seconds of one clock)."""

    def __init__(self, environments: int) -> None:
        self.returns = np.zeros(environments, np.float64)
        self._steps = 0
        self._before = np.zeros(environments, np.int64)  # steps before the episode
        self._started_at = np.zeros(environments, np.float64)
        self._partial = np.zeros(environments, np.bool_)

    def start(self, partial: Mask | None, now: float = 0.0) -> None:
        """Start an episode in every environment. Where `partial` (bool [N]), the episode was already in progress."""
        self._started_at[:] = now
        self.returns[:] = 0
        self._before[:] = self._steps
        self._partial[:] = False if partial is None else partial

    def count(self, rewards: npt.NDArray[np.float64], valid: Mask | None) -> None:
        """Add the rewards of a step, float64 [N], where `valid` (bool [N]); everywhere if `valid` is None.

        Rewards of RLX are at most `MAX_REWARD`: a sum needs 10^15 of them to exceed `MAX_NUMBER`.
        """
        if valid is not None:
            rewards = np.where(valid, rewards, 0.0)
            self._before += ~valid
        self._steps += 1
        self.returns += rewards

    def set_start(self, first: Mask, now: float) -> None:
        """Set the start time of episodes where `first` (bool [N]), which start after the previous ones have ended."""
        self._started_at[first] = now

    def end(self, ended: Mask, now: float = 0.0) -> Iterator[tuple[int, float, int, float]]:
        """Yield index, return, length and seconds of each ended episode, except partial ones. Reset all of them."""
        for index in np.flatnonzero(ended).tolist():
            if not self._partial[index]:
                length = self._steps - int(self._before[index])
                yield index, float(self.returns[index]), length, now - float(self._started_at[index])
        self.returns[ended] = 0
        self._before[ended] = self._steps
        self._started_at[ended] = now
        self._partial[ended] = False


class ReportedStarts:
    """The start times of the whole episodes that a client reports, for N environments."""

    def __init__(self, environments: int) -> None:
        self._times: list[float | None] = [None] * environments  # None: not known
        self._waiting = np.zeros(environments, np.bool_)
        """Environments whose whole episode starts when they are marked in `first`."""

    def init(self, partial: Mask | None, idle: Mask | None, now: float) -> None:
        """Set missing start times. Partial episodes have none, and idle environments wait for `first`."""
        if idle is None:
            self._waiting[:] = False
        else:
            self._waiting &= idle
        for index, time in enumerate(self._times):
            if time is None and (partial is None or not partial[index]):
                if idle is not None and idle[index]:
                    self._waiting[index] = True
                else:
                    self._times[index] = now

    def begin(self, first: Mask, now: float) -> None:
        """Set the start times of waiting environments where `first` (bool [N])."""
        for index in np.flatnonzero(first & self._waiting).tolist():
            self._times[index] = now
            self._waiting[index] = False

    def end(self, environment: int, waits: bool, now: float) -> float | None:
        """Return the seconds of an ended episode, or None. `waits`: whether the next one starts with `first`."""
        time, self._times[environment] = self._times[environment], now
        self._waiting[environment] = waits
        return None if time is None else now - time
