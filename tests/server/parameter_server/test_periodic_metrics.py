"""What is asked for between what is written."""

from __future__ import annotations

from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.service.metrics import ACT, FIRST, INTERVAL, PeriodicMetrics


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def report(bucket: int) -> pb.MetricsReport:
    return pb.MetricsReport(histograms=[pb.Histogram(name=ACT, buckets=[bucket], counts=[10])])


def test_latencies_are_there_without_a_writer() -> None:
    clock = Clock()
    figures = PeriodicMetrics(clock)
    assert figures.act_ms() == (None, None)
    figures.add_report("worker", 0, 1, report(0))
    clock.now += INTERVAL
    first, _ = figures.act_ms()
    assert first is not None
    figures.add_report("worker", 0, 1, report(40))
    assert figures.act_ms()[0] == first, "not more often than a writer would"
    clock.now += INTERVAL
    second, _ = figures.act_ms()
    assert second is not None
    assert second > first, "those of the last seconds alone"


def test_where_there_is_a_writer_nothing_is_taken_from_it() -> None:
    clock = Clock()
    figures = PeriodicMetrics(clock)
    figures.scalars()
    figures.add_report("worker", 0, 1, report(0))
    assert figures.act_ms() == (None, None)
    clock.now += FIRST
    written = figures.scalars()
    assert figures.act_ms() == (written[f"{ACT}/p50"], written[f"{ACT}/p99"])


def test_they_are_written_once_in_an_interval_however_often_it_is_asked() -> None:
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
