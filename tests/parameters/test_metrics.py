from __future__ import annotations

import pytest

from relaax.parameters.metrics import MetricsCollector
from relaax.parameters.moments import Moments


def test_gathered_metrics_are_taken_once() -> None:
    gathered = MetricsCollector()
    assert not gathered
    gathered.episode(10.0, 4)
    gathered.episode(20.0, 5)
    gathered.scalar("loss", 1.0)
    gathered.scalar("loss", 2.5)
    assert gathered
    report = gathered.take_report()
    assert [(e.episode_return, e.length) for e in report.episodes] == [(10.0, 4), (20.0, 5)]
    assert [(s.name, s.sum, s.count) for s in report.scalars] == [("loss", 3.5, 2)]
    assert not gathered


def test_many_episodes_take_several_reports_and_oldest_drop() -> None:
    gathered = MetricsCollector(max_episodes=5000)
    for number in range(6000):
        gathered.episode(number, 1)
    first, second = gathered.take_report(), gathered.take_report()
    returns = [episode.episode_return for episode in [*first.episodes, *second.episodes]]
    assert len(first.episodes) == 4096
    assert returns == list(range(1000, 6000))


def test_samples_are_counted_and_the_newest_gauge_is_kept() -> None:
    gathered = MetricsCollector()
    for value in (1.0, 1.01, 100.0):
        gathered.sample("latency/act_ms", value)
    assert gathered
    for value in (3.0, 4.0):
        gathered.gauge("worker/memory_mb", value)
    report = gathered.take_report()
    (histogram,) = report.histograms
    assert histogram.name == "latency/act_ms"
    assert dict(zip(histogram.buckets, histogram.counts, strict=True)) == {0: 2, 94: 1}
    assert [(gauge.name, gauge.value) for gauge in report.gauges] == [("worker/memory_mb", 4.0)]
    assert not gathered
    with pytest.raises(ValueError, match="not a metric name"):
        gathered.sample("a b", 1.0)


def test_an_invalid_name_is_refused_by_the_recorder() -> None:
    with pytest.raises(ValueError, match="not a metric name"):
        MetricsCollector().scalar("a b", 1.0)


def test_statistics_are_merged_and_taken_once() -> None:
    gathered = MetricsCollector()
    gathered.statistic("a", Moments.of([[1.0], [3.0]]))
    gathered.statistic("b", Moments.of([[0.0, 1.0]]))
    gathered.statistic("a", Moments.of([[8.0]]))
    assert not gathered, "statistics alone cause no report"
    taken = gathered.take_statistics()
    assert (taken["a"].count, taken["a"].mean.tolist(), taken["a"].m2.tolist()) == (3, [4], [26])
    assert taken["b"].count == 1
    assert gathered.take_statistics() == {}


def test_unmergeable_statistics_are_refused_by_the_recorder() -> None:
    gathered = MetricsCollector()
    gathered.statistic("a", Moments.of([[1.0]]))
    with pytest.raises(ValueError, match="samples of 1 numbers cannot be merged with samples of 2"):
        gathered.statistic("a", Moments.of([[1.0, 2.0]]))
    assert gathered.take_statistics()["a"].count == 1
