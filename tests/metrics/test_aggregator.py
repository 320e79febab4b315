from __future__ import annotations

import logging
import math

import pytest

from relaax.metrics import Aggregator, check_name
from relaax.metrics.rate_limited_log import RateLimitedLog


def test_scalars_are_averaged_until_drained() -> None:
    aggregator = Aggregator()
    aggregator.scalars([("loss/value", 6.0, 3), ("gradient/norm", 1.0, 1)])
    aggregator.scalars([("loss/value", 2.0, 1)])
    assert aggregator.drain() == {"loss/value": 2.0, "gradient/norm": 1.0}
    assert aggregator.drain() == {}


def test_episodes_give_mean_return_and_length() -> None:
    aggregator = Aggregator()
    aggregator.episodes([(10.0, 4), (20.0, 6)])
    assert aggregator.drain() == {"episode/return": 15.0, "episode/length": 5.0, "episode/mean_return_100": 15.0}
    aggregator.episodes([(30.0, 1)])
    assert aggregator.drain()["episode/mean_return_100"] == 20.0
    assert aggregator.progress() == (3, 20.0, None, 0.0)


def test_staleness_p95_covers_95_of_100_updates() -> None:
    aggregator = Aggregator()
    assert aggregator.staleness_p95() == 0.0
    for versions in range(1000, 0, -1):  # the last hundred values are 100 to 1
        aggregator.staleness(versions)
    assert aggregator.staleness_p95() == 95.0
    other = Aggregator()
    for versions in range(1, 21):
        other.staleness(versions)
    assert other.staleness_p95() == 19.0


def test_staleness_gives_mean_max_and_p95() -> None:
    aggregator = Aggregator()
    for versions in (0, 6, 3):
        aggregator.staleness(versions)
    assert aggregator.drain() == {"staleness/mean": 3.0, "staleness/max": 6.0, "staleness/p95": 6.0}
    aggregator.staleness(1)
    assert aggregator.drain()["staleness/max"] == 1.0
    assert aggregator.progress()[3] == 2.5


def test_invalid_metric_name_rejects_all_scalars() -> None:
    aggregator = Aggregator()
    with pytest.raises(ValueError, match="not a metric name"):
        aggregator.scalars([("fine", 1.0, 1), ("/x", 1.0, 1)])
    assert aggregator.drain() == {}


def test_new_names_beyond_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = Aggregator(max_names=2)
    for name in ("a", "b", "c", "d", "a"):
        aggregator.scalars([(name, 1.0, 1)])
    assert aggregator.drain() == {"a": 1.0, "b": 1.0}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["a", "client/x.y_z-1", "loss/policy/deep", "A" * 160])
def test_valid_metric_names_are_accepted(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "/a", "a b", "ä", "a\n", "A" * 161, "a\\b"])
def test_invalid_metric_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="not a metric name"):
        check_name(name)


def test_samples_that_overflow_the_sum_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    aggregator = Aggregator()
    for _ in range(6):
        aggregator.episodes([(1.7e308, 3), (2.0, 1)])
        aggregator.scalars([("loss", 1.7e308, 1), ("other", math.nan, 1)])
    written = aggregator.drain()
    assert (written["loss"], written["episode/return"], written["episode/length"]) == (1.7e308, 2.0, 2.0)
    assert math.isnan(written["other"])
    assert aggregator.progress()[:2] == (12, 2.0)
    assert caplog.text.count("samples of the metric loss are dropped") == 1


def test_rate_limited_log_counts_suppressed_messages(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = RateLimitedLog(logging.getLogger("tested"), lambda: now[0])
    for time in (0.0, 1.0, 59.0, 60.0, 61.0, 200.0):
        now[0] = time
        log("too large: %d", time)
    assert [record.getMessage() for record in caplog.records] == [
        "too large: 0",
        "too large: 60 (and 2 like it in the last minute)",
        "too large: 200 (and 1 like it in the last minute)",
    ]
