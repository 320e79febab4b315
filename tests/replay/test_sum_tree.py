from __future__ import annotations

import numpy as np
import pytest

from relaax.replay.table.trees import LARGEST_PRIORITY, SumTree

pytestmark = pytest.mark.checks("relaax/replay")

CAPACITIES = [1, 2, 3, 5, 7, 1000]


def filled(priorities: np.ndarray) -> SumTree:
    tree = SumTree(len(priorities))
    tree.set(np.arange(len(priorities)), priorities)
    return tree


def chi_squared_limit(freedom: int) -> float:
    """The value that a chi-squared statistic exceeds with probability 1e-6 (Wilson and Hilferty 1931)."""
    share = 2 / (9 * freedom)
    return freedom * (1 - share + 4.7534 * share**0.5) ** 3


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_total_is_the_sum_of_the_set_priorities(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    expected = np.zeros(capacity)
    tree = SumTree(capacity)
    assert tree.total == 0.0
    for _ in range(100):
        slots = rng.integers(capacity, size=rng.integers(1, 2 * capacity + 1))
        priorities = rng.random(len(slots))
        tree.set(slots, priorities)
        for slot, priority in zip(slots, priorities, strict=True):
            expected[slot] = priority
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), expected)
        assert tree.total == pytest.approx(expected.sum(), rel=1e-14)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_values_are_found_by_cumulative_sums(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    priorities = rng.integers(0, 4, capacity).astype(float)  # integers, so that sums are exact
    priorities[rng.integers(capacity)] = 3.0
    tree = filled(priorities)
    values = np.concatenate([np.arange(tree.total), rng.random(1000) * tree.total])
    expected = np.searchsorted(np.cumsum(priorities), values, side="right")
    np.testing.assert_array_equal(tree.find(values), expected)
    assert tree.find([tree.total]) == [np.flatnonzero(priorities)[-1]]


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_follow_the_distribution_of_priorities(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    priorities = rng.random(capacity) + 0.1
    priorities[::3] = 0 if capacity > 1 else 1
    draws = 1_000_000
    tree = filled(priorities)
    counts = np.bincount(tree.find(rng.random(draws) * tree.total), minlength=capacity)
    assert counts[priorities == 0].sum() == 0
    there = priorities > 0
    expected = draws * priorities[there] / priorities.sum()
    statistic = ((counts[there] - expected) ** 2 / expected).sum()
    assert statistic <= chi_squared_limit(max(int(there.sum()) - 1, 1))


def test_priority_zero_is_never_found() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        priorities = 10 ** rng.uniform(-12, 12, 13)
        priorities[rng.random(13) < 0.6] = 0
        if not priorities.any():
            continue
        tree = filled(priorities)
        borders = np.cumsum(priorities)
        borders = np.concatenate([borders, np.nextafter(borders, 0), np.nextafter(borders, np.inf), [0, tree.total]])
        found = tree.find(np.concatenate([np.minimum(borders, tree.total), rng.random(500) * tree.total]))
        assert (priorities[found] > 0).all()


def test_smallest_priorities_are_found() -> None:
    tiny = np.array([0, 5e-324, 0, 0, 1e-310, 0])
    tree = filled(tiny)
    assert set(tree.find(np.linspace(0, tree.total, 1000))) <= {1, 4}
    largest = filled(np.full(7, LARGEST_PRIORITY))
    assert np.isfinite(largest.total)
    assert set(largest.find(np.linspace(0, largest.total, 1000))) == set(range(7))


def without_drift(updates: int) -> None:
    capacity, batch = 1000, 1_000_000
    rng = np.random.default_rng(1)
    tree = SumTree(capacity)
    for _ in range(updates // batch):
        tree.set(rng.integers(capacity, size=batch), 10 ** rng.uniform(-12, 12, batch))
    # The tree equals a new one with the same priorities, so earlier priorities leave no error in any sum.
    fresh = filled(tree.get(np.arange(capacity)))
    assert tree.total == fresh.total
    values = rng.random(100_000) * tree.total
    np.testing.assert_array_equal(tree.find(values), fresh.find(values))
    # Removed large priorities leave no error.
    tree.set(np.arange(capacity), np.full(capacity, 1e-12))
    assert tree.total == pytest.approx(1e-9, rel=1e-12)


def test_ten_million_updates_do_not_drift() -> None:
    without_drift(10_000_000)


@pytest.mark.slow
def test_a_hundred_million_updates_do_not_drift(short: bool) -> None:
    without_drift(20_000_000 if short else 100_000_000)


@pytest.mark.parametrize("wrong", [-1e-9, np.nan, np.inf, -np.inf, 2 * LARGEST_PRIORITY])
def test_invalid_priority_is_rejected_without_a_change(wrong: float) -> None:
    tree = filled(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="a priority must be between 0"):
        tree.set([0, 1], [5.0, wrong])
    np.testing.assert_array_equal(tree.get([0, 1, 2]), [1, 2, 3])


def test_invalid_calls_are_rejected() -> None:
    tree = filled(np.array([1.0, 2.0, 3.0]))  # the tree has a fourth leaf without a slot
    with pytest.raises(ValueError, match="slots must be between 0 and 2, not 3 to 3"):
        tree.set([3], [1.0])
    with pytest.raises(ValueError, match="slots must be between 0 and 2, not -1 to 0"):
        tree.get([0, -1])
    with pytest.raises(ValueError, match="number of priorities must be 2"):
        tree.set([0, 1], [1.0])
    for value in (-0.1, 6.1, np.nan):
        with pytest.raises(ValueError, match=r"values must be between 0 and the total 6\.0"):
            tree.find([value])
    with pytest.raises(ValueError, match="all priorities are 0"):
        SumTree(3).find([0.0])
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        SumTree(0)
