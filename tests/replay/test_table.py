from __future__ import annotations

import threading
from bisect import bisect_right

import numpy as np
import pytest

from relaax.replay.spec import DEMONSTRATION, Field, TableSpec
from relaax.replay.table.table import Table, Totals
from relaax.replay.table.writers import SequenceGap
from support.table_copies import largest_priority

FIELDS = {"value": Field("float32"), "action": Field("int64", (2,)), "done": Field("bool")}


def spec(capacity: int = 10, **options: object) -> TableSpec:
    return TableSpec("replay", FIELDS, capacity, **options)  # type: ignore[arg-type]


def columns(*values: float) -> dict[str, np.ndarray]:
    numbers = np.array(values, np.float32)
    actions = np.stack([numbers, -numbers], axis=1).astype(np.int64)
    return {"value": numbers, "action": actions, "done": numbers % 2 == 0}


def draws_of(table: Table, draws: int) -> dict[float, float]:
    """Return the fraction of draws of each value."""
    values, counts = np.unique(table.sample(draws).columns["value"], return_counts=True)
    return dict(zip(values.tolist(), (counts / draws).tolist(), strict=True))


def test_sampled_items_equal_the_inserted_ones() -> None:
    table = Table(spec(), seed=0)
    keys = table.insert("w", 1, columns(1, 2, 3)).keys
    assert table.size == 3
    sample = table.sample(200)
    assert (sample.size, sample.total_priority) == (3, 3.0)
    np.testing.assert_array_equal(sample.probabilities, np.full(200, 1 / 3))
    for index, value in enumerate(sample.columns["value"].tolist()):
        assert sample.keys[index] == keys[int(value) - 1]
        assert sample.ages[index] == 3 - value
        assert sample.columns["action"][index].tolist() == [value, -value]
        assert sample.columns["done"][index] == (value % 2 == 0)
    assert {name: column.dtype.name for name, column in sample.columns.items()} == {
        "value": "float32",
        "action": "int64",
        "done": "bool",
    }


def test_a_million_draws_are_uniform() -> None:
    table = Table(spec(capacity=7), seed=1)
    table.insert("w", 1, columns(*range(5)))
    shares = draws_of(table, 1_000_000)
    assert set(shares) == set(range(5))
    statistic = sum((share - 0.2) ** 2 / 0.2 for share in shares.values()) * 1_000_000
    assert statistic < 34.5  # exceeded once in a million with 4 degrees of freedom


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_million_draws_follow_priorities_to_the_power_of_alpha(alpha: float) -> None:
    table = Table(spec(sampler="prioritized", alpha=alpha), seed=1)
    priorities = np.array([0.5, 1, 2, 4, 8])
    table.insert("w", 1, columns(*range(5)), priorities)
    expected = priorities**alpha / (priorities**alpha).sum()
    assert table.total_priority == pytest.approx((priorities**alpha).sum())
    shares = draws_of(table, 1_000_000)
    statistic = sum((shares[i] - expected[i]) ** 2 / expected[i] for i in range(5)) * 1_000_000
    assert statistic < 34.5
    sample = table.sample(100)
    np.testing.assert_allclose(sample.probabilities, expected[sample.columns["value"].astype(int)])


def test_priority_zero_is_drawn_if_all_priorities_are_zero() -> None:
    table = Table(spec(sampler="prioritized"), seed=0)
    keys = table.insert("w", 1, columns(1, 2, 3), [0.0, 1.0, 0.0]).keys
    assert set(draws_of(table, 10_000)) == {2.0}
    table.update_priorities(keys[1:2], [0.0])
    assert (table.total_priority, largest_priority(table)) == (0.0, 0.0)
    shares = draws_of(table, 100_000)
    assert shares == {value: pytest.approx(1 / 3, abs=0.01) for value in (1.0, 2.0, 3.0)}
    assert table.sample(1).probabilities == [1 / 3]


def test_draws_over_all_shards_are_proportional_to_priority() -> None:
    """If each shard is drawn in proportion to its sum, an item has probability p / Σ over all shards."""
    priorities = np.array([0.1, 3.0, 1.0, 0.7])
    shards = [Table(spec(sampler="prioritized", alpha=1.0), seed=seed) for seed in range(2)]
    for index, shard in enumerate(shards):
        chosen = slice(2 * index, 2 * index + 2)
        shard.insert("w", 1, columns(*range(4)[chosen]), priorities[chosen])
    totals = np.array([shard.total_priority for shard in shards])
    draws = np.random.default_rng(0).multinomial(1_000_000, totals / totals.sum())
    samples = [shard.sample(int(count)) for shard, count in zip(shards, draws, strict=True)]
    counts = np.bincount(np.concatenate([sample.columns["value"] for sample in samples]).astype(int))
    expected = priorities / priorities.sum() * 1_000_000
    assert ((counts - expected) ** 2 / expected).sum() < 30.7  # 3 degrees of freedom
    for sample in samples:
        global_probabilities = sample.probabilities * sample.total_priority / totals.sum()
        np.testing.assert_allclose(
            global_probabilities, priorities[sample.columns["value"].astype(int)] / priorities.sum()
        )


def test_demonstrations_keep_their_least_priority() -> None:
    fields = {"value": Field("float32"), DEMONSTRATION: Field("bool")}
    table = Table(TableSpec("replay", fields, 4, "prioritized", alpha=1.0, demonstration_priority=2.0), seed=0)

    def insert(number: int, values: list[float], marks: list[bool], priorities: list[float]) -> np.ndarray:
        columns = {"value": np.array(values, np.float32), DEMONSTRATION: np.array(marks)}
        return table.insert("w", number, columns, priorities).keys

    keys = insert(1, [1, 2, 3], [True, True, False], [0.5, 3.0, 1.0])
    assert draws_of(table, 600_000) == pytest.approx({1: 2 / 6, 2: 3 / 6, 3: 1 / 6}, abs=0.003)
    table.update_priorities(keys, [0.0, 0.0, 0.5])
    assert draws_of(table, 450_000) == pytest.approx({1: 4 / 9, 2: 4 / 9, 3: 1 / 9}, abs=0.003)
    insert(2, [4, 5], [False, True], [1.0, 0.1])  # the first is evicted
    assert draws_of(table, 550_000) == pytest.approx({2: 4 / 11, 3: 1 / 11, 4: 2 / 11, 5: 4 / 11}, abs=0.003)


def test_new_items_get_the_largest_present_priority() -> None:
    table = Table(spec(capacity=3, sampler="prioritized", alpha=1.0), seed=0)
    assert largest_priority(table) == 1.0
    keys = table.insert("w", 1, columns(1)).keys
    assert largest_priority(table) == 1.0
    table.update_priorities(keys, [9.0])
    more = table.insert("w", 2, columns(2, 3), [0.25, 0.5]).keys
    assert largest_priority(table) == 9.0
    table.insert("w", 3, columns(4), [0.125])  # the item with priority 9 is evicted
    assert largest_priority(table) == 0.5
    table.insert("w", 4, columns(5))
    assert table.total_priority == 0.5 + 0.125 + 0.5
    table.update_priorities(more, [7.0, 0.0])  # the first item is evicted
    assert largest_priority(table) == 0.5
    assert table.totals.stale_updates == 1


class Oracle:
    """A table as a list of [key, priority], oldest first."""

    def __init__(self, capacity: int, remover: str) -> None:
        self.items: list[list[float]] = []
        self.capacity = capacity
        self.remover = remover
        self.removed = 0

    def largest(self) -> float:
        return max((priority for _, priority in self.items), default=1.0)

    def insert(self, keys: list[int], priorities: list[float] | None) -> None:
        given = [self.largest()] * len(keys) if priorities is None else priorities
        for _ in range(len(self.items) + len(keys) - self.capacity):
            if self.remover == "fifo":
                self.items.pop(0)
            else:
                self.items.remove(min(self.items, key=lambda item: item[1]))
            self.removed += 1
        self.items += [[key, priority] for key, priority in zip(keys, given, strict=True)]

    def update(self, keys: list[int], priorities: list[float]) -> int:
        applied = 0
        for key, priority in zip(keys, priorities, strict=True):
            for item in self.items:
                if item[0] == key:
                    item[1] = priority
                    applied += 1
        return applied


@pytest.mark.parametrize("capacity", [1, 2, 5, 50])
@pytest.mark.parametrize("remover", ["fifo", "lowest_priority"])
def test_random_operations_match_a_list(remover: str, capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    table = Table(spec(capacity, sampler="prioritized", alpha=1.0, remover=remover), seed=0)
    oracle = Oracle(capacity, remover)
    seen: list[int] = []
    for sequence in range(1, 150):
        count = int(rng.integers(0, min(capacity, 5) + 1))
        # Few distinct priorities, so that ties are common.
        priorities = None if rng.random() < 0.5 else (rng.integers(0, 5, count) / 4).tolist()
        keys = table.insert("w", sequence, columns(*rng.random(count)), priorities).keys.tolist()
        assert len(keys) == count
        oracle.insert(keys, priorities)
        seen += keys
        chosen = rng.choice(np.array(seen[-2 * capacity :], np.uint64), 4).tolist() if seen else []
        updated = (rng.integers(0, 5, len(chosen)) / 4).tolist()
        assert table.update_priorities(np.array(chosen, np.uint64), updated) == oracle.update(chosen, updated)

        assert table.size == len(oracle.items)
        assert table.total_priority == sum(priority for _, priority in oracle.items)
        assert largest_priority(table) == oracle.largest()
        if oracle.items:
            there = dict(map(tuple, oracle.items))
            sample = table.sample(20)
            assert set(sample.keys.tolist()) <= set(there)
            weights = np.array([there[key] for key in sample.keys.tolist()])
            total = sum(there.values())
            np.testing.assert_allclose(sample.probabilities, weights / total if total else 1 / len(there))
            newer = [len(seen) - bisect_right(seen, key) for key in sample.keys.tolist()]
            assert sample.ages.tolist() == newer
    assert len(set(seen)) == len(seen)
    totals = table.totals
    assert (totals.inserted, totals.removed) == (len(seen), oracle.removed)


def test_keys_are_unique() -> None:
    table = Table(spec(capacity=2), seed=0)
    keys = [int(key) for sequence in range(1, 50) for key in table.insert("w", sequence, columns(1)).keys]
    assert keys == sorted(set(keys))
    assert table.update_priorities(np.array([*keys[:-2], 0, 1, 2**64 - 1], np.uint64), np.ones(50)) == 0
    assert table.totals.stale_updates == 50


def test_duplicate_insert_changes_nothing() -> None:
    table = Table(spec(), seed=0)
    table.insert("w", 1, columns(1))
    table.insert("w", 2, columns(2))
    for sequence in (1, 2):
        answer = table.insert("w", sequence, columns(7, 8, 9))
        assert (answer.duplicate, len(answer.keys)) == (True, 0)
    assert not table.insert("other", 1, columns(3)).duplicate
    assert table.totals == Totals(inserted=3, duplicates=2)
    assert table.size == 3


def test_gap_is_rejected_with_the_missing_number() -> None:
    table = Table(spec(), seed=0)
    with pytest.raises(SequenceGap, match="received insert 2, but 1 is missing") as new:
        table.insert("w", 2, columns(1))
    table.insert("w", 1, columns(1))
    with pytest.raises(SequenceGap) as later:
        table.insert("w", 3, columns(1))
    assert (new.value.expected, later.value.expected) == (1, 2)
    assert table.totals == Totals(inserted=1)
    table.insert("w", 2, columns(1))


def test_removed_writer_restarts_at_one_and_its_items_stay() -> None:
    table = Table(spec(), seed=0)
    table.insert("w", 1, columns(1, 2))
    table.remove_writer("w")
    table.remove_writer("nobody")
    assert table.size == 2
    assert not table.insert("w", 1, columns(3)).duplicate
    assert table.size == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"value": np.zeros(2)}, "'value' must be float32 \\['B'\\], .* not float64 \\[2\\]"),
        ({"value": np.zeros((2, 1), np.float32)}, "not float32 \\[2, 1\\]"),
        ({"value": np.zeros(3, np.float32)}, "with the same B for all fields"),
        ({"value": np.float32(0)}, "not float32 \\[\\]"),
        ({"more": np.zeros(2)}, "have the fields \\['action', 'done', 'value'\\]"),
    ],
)
def test_malformed_items_are_rejected(change: dict[str, np.ndarray], why: str) -> None:
    table = Table(spec(), seed=0)
    with pytest.raises(ValueError, match=why):
        table.insert("w", 1, columns(1, 2) | change)
    assert table.totals == Totals()
    table.insert("w", 1, columns(1, 2))


def test_invalid_calls_are_rejected() -> None:
    table = Table(spec(capacity=2), seed=0)
    with pytest.raises(ValueError, match="table 'replay' is empty"):
        table.sample(1)
    with pytest.raises(ValueError, match="an insert of 3 items exceeds the capacity 2"):
        table.insert("w", 1, columns(1, 2, 3))
    with pytest.raises(ValueError, match="sequence number of an insert must be at least 1, not 0"):
        table.insert("w", 0, columns(1))
    with pytest.raises(ValueError, match="table 'replay' has no stacks of frames"):
        table.insert("w", 1, columns(1), frames=np.zeros((1, 2, 2, 1), np.uint8))
    for priorities in ([-1.0], [np.nan], [np.inf], [1.0, 1.0]):
        with pytest.raises(ValueError, match="priorit"):
            table.insert("w", 1, columns(1), priorities)
    keys = table.insert("w", 1, columns(1)).keys
    with pytest.raises(ValueError, match="a priority must be between 0"):
        table.update_priorities(keys, [np.nan])
    with pytest.raises(ValueError, match="a sample must have at least 1 item, not 0"):
        table.sample(0)
    assert table.totals == Totals(inserted=1)


def test_items_are_consistent_with_concurrent_writers() -> None:
    """Each item is consistent although threads write, sample and update at the same time."""
    writers, inserts = 3, 300
    table = Table(spec(capacity=100, sampler="prioritized"), seed=0)
    table.insert("first", 1, columns(0))
    start, failures = threading.Barrier(writers + 2), []

    def write(name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for sequence in range(1, inserts + 1):
            table.insert(name, sequence, columns(*rng.integers(0, 1000, 7)))

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        start.wait()
        for _ in range(inserts):
            sample = table.sample(16)
            values = sample.columns["value"]
            actions = np.stack([values, -values], axis=1)
            if not ((sample.columns["action"] == actions).all() and (sample.ages >= 0).all()):
                failures.append(sample)
            table.update_priorities(sample.keys, rng.random(16))

    threads = [threading.Thread(target=write, args=(f"writer {index}", index)) for index in range(writers)]
    threads += [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    totals = table.totals
    assert totals.inserted == 1 + writers * inserts * 7
    assert totals.removed == totals.inserted - 100
    assert totals.sampled == 2 * inserts * 16
    assert table.size == 100
