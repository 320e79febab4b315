"""Eviction of random items in proportion to a negative power of their priorities (Horgan et al. 2018, appendix D)."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.replay.spec import Field, TableSpec
from relaax.replay.table.table import Table
from relaax.replay.table.trees import LARGEST_PRIORITY, InverseTree
from support.table_copies import restore, state_of

pytestmark = pytest.mark.checks("relaax/replay")

PRIORITIES = np.array([0.01, 0.5, 1.0, 4.0, 30.0])
KEYS = 5 + np.arange(5, dtype=np.uint64)  # of the slots 0 to 4
EVICTIONS = 20_000
LIMIT = 34.5  # chi-squared with 4 degrees of freedom exceeds it once in a million


def table_of(capacity: int, exponent: float = -0.4, seed: int = 0) -> Table:
    spec = TableSpec(
        "t",
        {"value": Field("int64")},
        capacity,
        sampler="prioritized",
        remover="inverse_priority",
        remover_exponent=exponent,
    )
    return Table(spec, seed)


def chi_squared(counts: np.ndarray, weights: np.ndarray) -> float:
    expected = weights / weights.sum() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("exponent", [-0.4, -1.0, 0.0])
def test_evictions_follow_priorities_to_the_exponent(exponent: float) -> None:
    table = table_of(5, exponent)
    keys = table.insert("w", 1, {"value": np.arange(5)}, PRIORITIES).keys.tolist()
    counts = np.zeros(5)
    for sequence in range(2, EVICTIONS + 2):
        # The new item replaces the evicted one, with its value's priority.
        (key,) = table.insert("w", sequence, {"value": [0]}, [1.0]).keys.tolist()
        evicted = key % 5  # the only free slot is that of the evicted item
        keys[evicted] = key
        table.update_priorities(np.array([key], np.uint64), PRIORITIES[[evicted]])
        counts[evicted] += 1
    assert chi_squared(counts, PRIORITIES**exponent) < LIMIT
    assert table.totals.removed == EVICTIONS


def test_items_of_one_insert_are_drawn_without_replacement() -> None:
    weights = PRIORITIES**-0.4
    tree = InverseTree(5, -0.4)
    random = np.random.default_rng(1)
    counts = np.zeros((5, 5))
    for _ in range(EVICTIONS):
        tree.set(KEYS, PRIORITIES)
        first, second = tree.pop(random.random(2))
        counts[first, second] += 1
    assert np.trace(counts) == 0
    # P(i, then j) = w_i / W * w_j / (W - w_i)
    pairs = np.outer(weights / (weights.sum() - weights), weights)
    others = ~np.eye(5, dtype=bool)
    assert chi_squared(counts[others], pairs[others]) < 63.0  # 19 degrees of freedom, once in a million
    left = tree.pop(random.random(3))
    assert {*left.tolist(), int(first), int(second)} == set(range(5))


def test_updated_priorities_change_the_weights() -> None:
    tree = InverseTree(2, -1.0)
    random = np.random.default_rng(2)
    keys = np.array([2, 3], np.uint64)
    counts = np.zeros(2)
    for _ in range(EVICTIONS):
        tree.set(keys, np.array([1.0, 1.0]))
        tree.set(keys[1:], np.array([3.0]))
        counts[tree.pop(random.random(1))[0]] += 1
    assert chi_squared(counts, np.array([3.0, 1.0])) < 24.0  # 1 degree of freedom


def test_priority_zero_is_evicted_before_all_others() -> None:
    tree = InverseTree(5, -0.4)
    priorities = np.array([1e-30, 0.0, LARGEST_PRIORITY, 0.0, 1.0])
    for seed in range(50):
        tree.set(KEYS, priorities)
        popped = tree.pop(np.random.default_rng(seed).random(5)).tolist()
        assert set(popped[:2]) == {1, 3}
        assert set(popped) == set(range(5))


def test_same_seed_evicts_the_same_items() -> None:
    def evolved(seed: int) -> np.ndarray:
        table = table_of(40, seed=seed)
        random = np.random.default_rng(0)
        for sequence in range(1, 60):
            table.insert("w", sequence, {"value": sequence * 10 + np.arange(7)}, random.random(7))
        return state_of(table)["columns/value"]

    np.testing.assert_array_equal(evolved(3), evolved(3))
    assert not np.array_equal(np.sort(evolved(3)), np.sort(evolved(4)))


def test_restored_table_evicts_the_same_items() -> None:
    table, other = table_of(40, seed=1), table_of(40, seed=2)
    random = np.random.default_rng(0)
    for sequence in range(1, 30):
        table.insert("w", sequence, {"value": sequence * 10 + np.arange(7)}, random.random(7))
    restore(other, state_of(table))
    for sequence in range(30, 60):
        priorities = random.random(7)
        for one in (table, other):
            one.insert("w", sequence, {"value": sequence * 10 + np.arange(7)}, priorities)
            one.update_priorities(one.sample(5).keys, priorities[:5])
    np.testing.assert_array_equal(state_of(table)["columns/value"], state_of(other)["columns/value"])
    np.testing.assert_array_equal(state_of(table)["random"], state_of(other)["random"])
