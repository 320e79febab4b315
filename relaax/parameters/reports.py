"""Metrics that go to the parameter server without a push."""

from __future__ import annotations

import time

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.metrics import MetricsCollector

REPORT_INTERVAL = 1.0
"""Seconds between two of them."""


class Reports:
    """The reports of a worker, each with a number, so that none is counted twice."""

    def __init__(self, metrics: MetricsCollector) -> None:
        self._metrics = metrics
        self._unanswered: pb.ReportRequest | None = None
        self._number = 0
        self._reported = -REPORT_INTERVAL

    def begin(self) -> None:
        """Number them from 1: the worker registers under a new name."""
        self._number = 0

    def due(self) -> bool:
        """Return whether it is time for one, and take note of the time if it is."""
        if time.monotonic() - self._reported < REPORT_INTERVAL:
            return False
        self._reported = time.monotonic()
        return True

    def next(self, worker_id: str) -> pb.ReportRequest | None:
        """Return the report that got no answer yet, under the number it had; else what was gathered since, if any."""
        if self._unanswered is None:
            if not self._metrics:
                return None
            self._unanswered = pb.ReportRequest(report=self._metrics.take())
        request = self._unanswered
        if request.worker_id != worker_id:
            self._number += 1
            request.worker_id, request.report_id = worker_id, self._number
        return request

    def answered(self) -> None:
        """Forget the report that `next` has returned."""
        self._unanswered = None

    def last(self) -> pb.MetricsReport:
        """Return what a goodbye takes along."""
        return self._unanswered.report if self._unanswered else self._metrics.take()
