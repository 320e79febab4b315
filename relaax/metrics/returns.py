"""Training progress: the mean return of the last episodes, robust to one client that reports false returns."""

from __future__ import annotations

import logging
import math
import statistics
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from typing import Any

from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.rlx.messages import MAX_NUMBER

_log = logging.getLogger(__name__)

OUTLYING = 100.0
"""A return is an outlier if its magnitude exceeds this factor times the median of all clients' largest magnitudes."""
JUDGES = 3
"""Minimum number of clients for a comparison. If only two differ, either could be wrong."""
COMPARED_CLIENTS = 256
"""Maximum number of clients whose returns are stored. The client whose last episode is oldest is dropped."""
_REFRESH = 100
"""Number of episodes between two computations of the bound."""


class RecentReturns:
    """Returns of the last `window` episodes, their mean, and the best such mean. Not thread-safe.

    A return beyond RLX's bound is ignored, so that every mean is finite. If `JUDGES` clients have episodes, outliers
    are discarded and counted as well (see `OUTLYING`). A warning is logged at most once a minute.
    """

    def __init__(self, window: int = 100) -> None:
        self._last: deque[tuple[float, str]] = deque(maxlen=window)
        self._window = window
        self._clients: OrderedDict[str, deque[tuple[int, float]]] = OrderedDict()  # newest of each, numbered by episode
        self._bound = math.inf
        self._refresh_at = 0
        self._warn = RateLimitedLog(_log)
        self.episodes = 0
        self.discarded = 0
        """Number of episodes whose returns were discarded since the process started."""
        self.best: float | None = None

    def add(self, episode_return: float, client: str = "") -> bool:
        """Add the return of a finished episode. Returns whether it counts."""
        self.episodes += 1
        if not is_return(episode_return):
            self.discarded += 1
            self._warn("an episode's return of %g is not counted in the metrics", episode_return)
            return False
        if self._record(episode_return, client) or self.episodes >= self._refresh_at:
            self._refresh()
        if abs(episode_return) > self._bound:
            self._discard(episode_return, client)
            return False
        self._last.append((episode_return, client))
        if len(self._last) == self._last.maxlen:
            mean = self.mean
            assert mean is not None
            self.best = mean if self.best is None else max(self.best, mean)
        return True

    @property
    def mean(self) -> float | None:
        """The mean over the window, or over fewer episodes at the beginning; None before the first."""
        return math.fsum(value for value, _ in self._last) / len(self._last) if self._last else None

    def agreed(self, present: Collection[str]) -> float | None:
        """Return the mean return without the influence of a single client.

        If fewer than `JUDGES` of the `present` clients have episodes, it is `mean`. Otherwise it is the mean of their
        newest episodes, at most half of them of one client. A return counts at most as much as the largest return of
        the other clients.
        """
        clients = {client: own for client, own in self._clients.items() if client in present}
        if len(clients) < JUDGES:
            return self.mean
        best = {client: max(value for _, value in own) for client, own in clients.items()}
        first, second = sorted(best.values(), reverse=True)[:2]
        counted: list[tuple[int, float]] = []
        for client, own in clients.items():
            most = second if best[client] == first else first
            counted += [(number, min(value, most)) for number, value in own if abs(value) <= self._bound]
        newest = [value for _, value in sorted(counted)[-self._window :]]
        return math.fsum(newest) / len(newest) if newest else None

    def as_json(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {"episodes": self.episodes, "last": [value for value, _ in self._last], "best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `as_json`. State of older versions may hold returns that are now out of bounds."""
        last = [float(value) for value in state["last"]]
        best = None if state["best"] is None else float(state["best"])
        kept = [value for value in last if is_return(value)]
        self.episodes = int(state["episodes"])
        self._last.clear()
        self._last.extend((value, "") for value in kept)
        self._clients.clear()
        self._bound, self._refresh_at = math.inf, 0
        self.best = best if best is None or is_return(best) else None
        if len(kept) < len(last) or self.best != best:
            _log.warning(
                "the checkpoint contains returns beyond %g: %d of the last %d are dropped, the best mean return is %s",
                MAX_NUMBER,
                len(last) - len(kept),
                len(last),
                "unknown" if self.best is None else "kept",
            )

    def _record(self, episode_return: float, client: str) -> bool:
        """Store a return of a client. Returns whether the client is new."""
        own = self._clients.get(client)
        is_new = own is None
        if own is None:
            own = self._clients[client] = deque(maxlen=max(1, self._window // 2))
            if len(self._clients) > COMPARED_CLIENTS:
                self._clients.popitem(last=False)
        own.append((self.episodes, episode_return))
        self._clients.move_to_end(client)
        return is_new

    def _refresh(self) -> None:
        """Recompute the bound, and remove the returns beyond it from the window."""
        self._refresh_at = self.episodes + _REFRESH
        if len(self._clients) < JUDGES:
            self._bound = math.inf
            return
        largest = (max(abs(value) for _, value in own) for own in self._clients.values())
        self._bound = OUTLYING * max(1.0, statistics.median_low(largest))
        # Restored returns have no client and are kept. After a start, short episodes end first, so the bound may be too
        # low for restored returns.
        outliers = [(value, client) for value, client in self._last if client and abs(value) > self._bound]
        if outliers:
            kept = [entry for entry in self._last if entry not in outliers]
            self._last.clear()
            self._last.extend(kept)
            self.best = None  # it may include outliers
            for value, client in outliers:
                self._discard(value, client)

    def _discard(self, episode_return: float, client: str) -> None:
        self.discarded += 1
        self._warn(
            "the return %g of %s is not counted in the means: the returns of other clients are within %g",
            episode_return,
            client or "a client",
            self._bound,
        )


def is_return(number: float) -> bool:
    """Return whether `number` is within RLX's bound (see `relaax.rlx.messages.MAX_NUMBER`)."""
    return abs(number) <= MAX_NUMBER  # False for NaN
