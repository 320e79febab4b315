from __future__ import annotations

import numpy as np
import pytest

from relaax.metrics import Quantiles
from relaax.metrics.histogram import HIGHEST, LOWEST, Histogram


def test_quantiles_are_exact_within_bucket_width() -> None:
    histogram = Histogram()
    samples = np.random.default_rng(0).lognormal(0.0, 2.0, 5_000)
    for sample in samples.tolist():
        histogram.add(sample)
    for share in (0.01, 0.5, 0.99, 1.0):
        exact = np.quantile(samples, share, method="inverted_cdf")
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.026)


def test_merged_histogram_equals_histogram_of_all_samples() -> None:
    one, two, both = Histogram(), Histogram(), Histogram()
    for histogram, samples in ((one, range(1, 100)), (two, range(500, 510))):
        for sample in samples:
            histogram.add(sample)
            both.add(sample)
    one.merge(two.counts.items())
    assert one.counts == both.counts


def test_extreme_values_use_first_and_last_bucket() -> None:
    histogram = Histogram()
    for value in (0.0, -1.0, 5e-324, 1e308, float("inf")):
        histogram.add(value)
    assert histogram.counts == {LOWEST: 3, HIGHEST: 2}


def test_quantile_without_samples_is_none() -> None:
    assert Histogram().quantile(0.5) is None


def test_drained_quantiles_remain_as_latest() -> None:
    quantiles = Quantiles()
    quantiles.add("latency/act_ms", [(0, 98)])
    quantiles.add("latency/act_ms", [(20, 1), (40, 1)])
    drained = quantiles.drain()
    assert drained == {
        "latency/act_ms/p50": pytest.approx(1.025, abs=0.001),
        "latency/act_ms/p99": pytest.approx(2.719, abs=0.001),
    }
    assert quantiles.drain() == {}
    assert quantiles.latest("latency/act_ms/p50") == drained["latency/act_ms/p50"]
    assert quantiles.latest("other/p50") is None


def test_number_of_quantile_names_is_bounded() -> None:
    quantiles = Quantiles(max_names=1)
    quantiles.add("a", [(0, 1)])
    quantiles.add("b", [(0, 1)])
    quantiles.add("a", [(0, 1)])
    assert set(quantiles.drain()) == {"a/p50", "a/p99"}
