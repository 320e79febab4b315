from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from relaax.parameters.moments import SAMPLE_LIMIT, Moments, MomentsOutOfRange, check_lengths
from relaax.transport.grpc_options import MAX_STATISTICS


def test_two_samples_and_a_third_by_hand() -> None:
    two = Moments.of([[1, 2], [3, 6]])
    assert (two.count, two.mean.tolist(), two.m2.tolist()) == (2, [2, 4], [2, 8])
    assert two.variance.tolist() == [1, 4]
    # Merge two samples of mean 2 with one sample 8. The mean is 2 + 6/3 = 4.
    # m2 is 2 + 0 + 6² · 2 · 1 / 3 = 26, which is (1-4)² + (3-4)² + (8-4)².
    three = two.merged(Moments.of([[8, 4]]))
    assert (three.count, three.mean.tolist(), three.m2.tolist()) == (3, [4, 4], [26, 8])


def test_merging_no_samples_changes_nothing() -> None:
    nothing, some = Moments.zeros(2), Moments.of([[1, 2], [3, 6]])
    assert some.merged(nothing) is some
    assert nothing.merged(some) is some
    assert nothing.merged(nothing).count == 0
    assert nothing.variance.tolist() == [0, 0]
    assert Moments.of(np.zeros((0, 3))).size == 3


@pytest.mark.parametrize("seed", range(5))
def test_any_split_gives_the_moments_of_one_pass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = rng.normal(rng.normal(0, 10, 4), [0.1, 1, 10, 1000], (5000, 4))
    samples[:, 0] += 1e3  # far from zero: a difference of two large sums would lose seven digits
    one_pass = Moments.of(samples)
    edges = np.sort(rng.integers(0, len(samples) + 1, 300))
    workers = [Moments.zeros(4) for _ in range(5)]
    for part in np.split(samples, edges):
        worker = rng.integers(len(workers))
        workers[worker] = workers[worker].merged(Moments.of(part))
    merged = Moments.zeros(4)
    for worker in workers:
        merged = merged.merged(worker)
    assert merged.count == 5000
    np.testing.assert_allclose(merged.mean, one_pass.mean, rtol=1e-12)
    np.testing.assert_allclose(merged.m2, one_pass.m2, rtol=1e-12)
    np.testing.assert_allclose(merged.variance, samples.var(axis=0), rtol=1e-12)


def test_arrays_are_copied_and_read_only() -> None:
    mean = np.array([1.0])
    moments = Moments(1, mean, np.array([0.0]))
    mean[0] = 7
    assert moments.mean.tolist() == [1]
    with pytest.raises(ValueError, match="read-only"):
        moments.mean[0] = 7
    with pytest.raises(dataclasses.FrozenInstanceError):
        moments.count = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("count", "mean", "m2", "sentence"),
    [
        (-1, [0], [0], "not -1"),
        (np.nan, [0], [0], "not nan"),
        (np.inf, [0], [0], "not inf"),
        (1, [np.nan], [0], "not finite"),
        (1, [0], [np.inf], "not finite"),
        (1, [0], [-0.5], "must be at least 0, not -0.5"),
        (1, [0, 0], [0], r"not \(2,\) and \(1,\)"),
        (1, [[0]], [[0]], r"the same shape \[D\]"),
    ],
)
def test_impossible_moments_are_refused(count: float, mean: list[float], m2: list[float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Moments(count, np.array(mean, float), np.array(m2, float))


def test_invalid_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \[B, D\], not \[2\]"):
        Moments.of([1, 2])
    for wrong in ([[np.nan]], [[np.inf], [0]], [[1e200, np.nan]]):
        with pytest.raises(ValueError, match="not finite"):
            Moments.of(wrong)
    with pytest.raises(ValueError, match="samples of 1 numbers cannot be merged with samples of 2"):
        Moments.zeros(1).merged(Moments.zeros(2))


@pytest.mark.parametrize("largest", [SAMPLE_LIMIT, 1e150, 1.7e308])
def test_samples_beyond_the_limit_are_clamped_and_mergeable(largest: float) -> None:
    rng = np.random.default_rng(5)
    merged = Moments.zeros(2)
    for _ in range(2000):
        samples = rng.choice([-largest, 0.0, largest], (3, 2))
        merged = merged.merged(Moments.of(samples))
    assert merged.count == 6000
    assert np.all(np.abs(merged.mean) < 0.1 * SAMPLE_LIMIT)
    np.testing.assert_allclose(merged.variance, 2 / 3 * SAMPLE_LIMIT**2, rtol=0.1)
    merged.merged(Moments.of(np.full((10**5, 2), -largest))).merged(Moments.of([[0.5, -0.5]]))


@pytest.mark.parametrize(
    "edge",
    [
        Moments(1.0, np.array([1e200]), np.array([0.0])),
        Moments(3.0, np.array([0.0]), np.array([1.7e308])),
        Moments(1.7e308, np.array([0.0]), np.array([1.0])),
        Moments(1e19, np.array([0.0]), np.array([1.0])),
    ],
)
def test_moments_out_of_range_are_not_merged(edge: Moments) -> None:
    some = Moments.of([[1], [3]])
    for first, second in ((edge, some), (some, edge), (Moments.zeros(1), edge), (edge, edge)):
        with pytest.raises(MomentsOutOfRange, match="are too large"):
            first.merged(second)


def test_valid_declarations_are_accepted() -> None:
    declared = {"observations": 4, "rewards/scaled": MAX_STATISTICS - 4}
    assert check_lengths(declared) == declared


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"a b": 1}, "'a b' is not a valid name of a statistic"),
        ({"": 1}, "'' is not a valid name"),
        ({"/a": 1}, "'/a' is not a valid name"),
        ({"a" * 65: 1}, "at most 64 characters"),
        ({"a": 0}, "statistic a is declared with 0 numbers"),
        ({"a": 1.0}, r"statistic a is declared with 1\.0 numbers"),
        ({"a": MAX_STATISTICS, "b": 1}, "have 32769 numbers together; the limit is 32768"),
        ({f"a{i}": 1 for i in range(65)}, "65 statistics are declared; the limit is 64"),
    ],
)
def test_invalid_declarations_are_refused(declared: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_lengths(declared)
