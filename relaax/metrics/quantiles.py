"""Histograms of many workers, merged until their quantiles are written."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from relaax.metrics.histogram import Histogram

SHARES: Mapping[str, float] = {"p50": 0.5, "p99": 0.99}


class Quantiles:
    """Collect histograms from any thread and give medians and 99th percentiles to one writer.

    Bounded: names beyond the first `max_names` are dropped.
    """

    def __init__(self, max_names: int = 64) -> None:
        self._max_names = max_names
        self._histograms: dict[str, Histogram] = {}
        self._latest: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, name: str, counts: Iterable[tuple[int, int]]) -> None:
        """Add samples of `name`, as (bucket, count)."""
        with self._lock:
            if name not in self._histograms and len(self._histograms) >= self._max_names:
                return
            self._histograms.setdefault(name, Histogram()).merge(counts)

    def drain(self) -> dict[str, float]:
        """Return the quantiles of the samples since the last call, as NAME/p50 and NAME/p99."""
        with self._lock:
            histograms, self._histograms = self._histograms, {}
            values = {
                f"{name}/{suffix}": value
                for name, histogram in histograms.items()
                for suffix, share in SHARES.items()
                if (value := histogram.quantile(share)) is not None
            }
            self._latest.update(values)
            return values

    def latest(self, name: str) -> float | None:
        """Return the last value that `drain` gave for NAME/p50 or NAME/p99; None before that."""
        with self._lock:
            return self._latest.get(name)
