"""Latencies and scalars that are computed once per interval, for the status and for the metrics."""

from __future__ import annotations

from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.service.metrics import ACT, FIRST, INTERVAL, PeriodicMetrics, Rates


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def report(bucket: int) -> pb.MetricsReport:
    return pb.MetricsReport(histograms=[pb.Histogram(name=ACT, buckets=[bucket], counts=[10])])


def test_latencies_are_available_without_a_writer() -> None:
    clock = Clock()
    figures = PeriodicMetrics(clock)
    assert figures.act_ms() == (None, None)
    figures.add_report("worker", 0, 1, report(0))
    clock.now += INTERVAL
    first, _ = figures.act_ms()
    assert first is not None
    figures.add_report("worker", 0, 1, report(40))
    assert figures.act_ms()[0] == first, "updated at most once per interval"
    clock.now += INTERVAL
    second, _ = figures.act_ms()
    assert second is not None
    assert second > first, "only the latencies of the last interval"


def test_status_takes_no_latencies_from_the_writer() -> None:
    clock = Clock()
    figures = PeriodicMetrics(clock)
    figures.scalars()
    figures.add_report("worker", 0, 1, report(0))
    assert figures.act_ms() == (None, None)
    clock.now += FIRST
    written = figures.scalars()
    assert figures.act_ms() == (written[f"{ACT}/p50"], written[f"{ACT}/p99"])


def test_scalars_are_returned_once_per_interval() -> None:
    clock = Clock()
    figures = PeriodicMetrics(clock)
    figures.scalars()
    written = []
    for second in range(1, 13):
        figures.add_report("worker", 0, 1, report(0))
        clock.now = float(second)
        if figures.scalars():
            written.append(second)
    assert written == [FIRST, FIRST + INTERVAL, FIRST + 2 * INTERVAL]


def test_rates_skip_a_roll_back() -> None:
    clock = Clock()
    rates = Rates(clock)
    found = []
    for steps in (100, 300, 50, 150):
        clock.now += 2.0
        found.append(rates({"steps": steps}))
    assert found == [{}, {"steps": 100.0}, {}, {"steps": 50.0}]
