from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relaax.checkpoint.array_file import to_buffers
from relaax.replay.spec import Field, TableSpec
from relaax.replay.table.table import Sample, Table
from support.table_copies import largest_priority, restore, state_of

FRAME = (2, 2, 1)
SPEC = TableSpec(
    "replay",
    {"observation": Field("uint8", (2, 2, 2), frames=2), "reward": Field("float32"), "done": Field("bool")},
    30,
    sampler="prioritized",
    frame=FRAME,
    frame_slots=40,
)
PLACES = {"frames/slots", "frames/whole", "pixels", "columns/observation", "writers/frames"}
"""Arrays that depend on frame slots: free slots may be used in another order."""


def use(table: Table, sequence: int, rounds: int) -> list[Sample]:
    """Insert, sample and update; the inserted items depend only on the arguments."""
    samples = []
    for number in range(sequence, sequence + rounds):
        rng = np.random.default_rng(number)
        first = 4 * (number - 1)
        for writer in ("w", "ж"):
            columns = {
                "observation": first + np.array([[-1, 0], [0, 1], [1, 2], [2, 3]], np.int64),
                "reward": rng.random(4, np.float32),
                "done": rng.random(4) < 0.5,
            }
            priorities = None if number % 3 else rng.random(4)
            frames = rng.integers(0, 256, (4, *FRAME), dtype=np.uint8)
            table.insert(writer, number, columns, priorities, frames, first, first + 3)
        sample = table.sample(16)
        samples.append(sample)
        table.update_priorities(sample.keys, rng.random(16) * 3)
    return samples


def assert_equal(one: list[Sample], other: list[Sample]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.keys, b.keys)
        np.testing.assert_array_equal(a.probabilities, b.probabilities)
        np.testing.assert_array_equal(a.ages, b.ages)
        assert (a.size, a.total_priority) == (b.size, b.total_priority)
        for name, column in a.columns.items():
            np.testing.assert_array_equal(column, b.columns[name])


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize("remover", ["fifo", "lowest_priority", "inverse_priority"])
@pytest.mark.parametrize("rounds", [1, 3, 25])
def test_restored_table_draws_the_same_samples(sampler: str, remover: str, rounds: int) -> None:
    spec = replace(SPEC, sampler=sampler, remover=remover)
    table = Table(spec, seed=1)
    use(table, 1, rounds)
    state = state_of(table)
    restored = Table(spec, seed=2)
    use(restored, 1, 7)  # `restore` replaces this content
    restore(restored, state)
    assert (restored.size, restored.frames, restored.totals) == (table.size, table.frames, table.totals)
    assert largest_priority(restored) == largest_priority(table)
    assert_equal(use(table, rounds + 1, 20), use(restored, rounds + 1, 20))
    again = state_of(restored)
    for name, array in state_of(table).items():
        if name not in PLACES:
            np.testing.assert_array_equal(array, again[name], err_msg=name)


def test_empty_table_is_restored() -> None:
    table, other = Table(SPEC, seed=1), Table(SPEC, seed=2)
    use(other, 1, 5)
    restore(other, state_of(table))
    assert other.size == other.frames == 0
    assert_equal(use(table, 1, 5), use(other, 1, 5))


def test_state_is_a_copy_that_a_checkpoint_can_store() -> None:
    table = Table(SPEC, seed=1)
    use(table, 1, 3)
    state = state_of(table)
    before = {name: array.copy() for name, array in state.items()}
    use(table, 4, 20)
    for name, array in before.items():
        np.testing.assert_array_equal(state[name], array)
    assert to_buffers(state)


def test_state_of_another_table_is_rejected() -> None:
    table = Table(SPEC, seed=1)
    use(table, 1, 1)
    others = {"capacity": 31}, {"remover": "lowest_priority"}, {"alpha": 0.5}, {"remover": "inverse_priority"}
    for other in (replace(SPEC, **changes) for changes in others):
        with pytest.raises(ValueError, match="the state belongs to another table"):
            restore(Table(other, seed=1), state_of(table))
