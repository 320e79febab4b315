"""A served table: its limiter, writers and ages, with a clock that the tests set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.server.ports.wait_slots import WaitSlots
from relaax.server.replay_server import served_table
from relaax.server.replay_server.served_table import ServedTable, WriterInsert
from relaax.server.service_errors import InvalidRequest, MemoryExhausted
from support.replay_servers import numbered, pictured


class Clock:
    """A clock in seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def table_with(clock: Clock, declaration: Any = None, shards: int = 1) -> ServedTable:
    return ServedTable(declaration or numbered(100), shards, "", clock)


def insert_of(sequence: int = 1, count: int = 2, writer: str = "w", **more: Any) -> WriterInsert:
    return WriterInsert(writer, sequence, count, {"number": np.arange(count)}, **more)


def test_rejected_requests_are_not_counted(clock: Clock) -> None:
    table, slots = table_with(clock, numbered(100, samples_per_insert=1.0, min_size=4, error_buffer=8.0)), WaitSlots()
    with pytest.raises(InvalidRequest):
        table.insert(WriterInsert("w", 1, 2, {"number": np.zeros(3)}), slots)
    assert (table.limiter.inserts, table.size) == (0, 0)
    assert table.limiter.await_insert(4, 0.0), "the limiter counts 4 items that the table does not have"
    with pytest.raises(InvalidRequest, match="is empty"):
        table.sample(2, 0.0, slots)
    assert (table.limiter.samples, table.limiter.balance) == (0, 4.0)


def test_repeated_and_early_inserts_are_not_counted(clock: Clock) -> None:
    table, slots = table_with(clock, numbered(100, samples_per_insert=1.0, min_size=4, error_buffer=8.0)), WaitSlots()
    assert not table.insert(insert_of(1), slots).duplicate
    assert table.insert(insert_of(1), slots).duplicate
    assert table.insert(insert_of(5), slots).expected == 2
    assert table.insert(insert_of(1, force=True, leaving=True), slots).duplicate
    assert (table.limiter.inserts, table.size, table.statistics.duplicates) == (2, 2, 2)


def test_insert_of_a_closing_writer_is_forced(clock: Clock) -> None:
    table, slots = table_with(clock, numbered(100, samples_per_insert=1.0, min_size=1, error_buffer=2.0)), WaitSlots()
    assert [table.insert(insert_of(number, 1), slots).not_yet for number in (1, 2, 3)] == [False] * 3
    assert table.insert(insert_of(4, 1), slots).not_yet
    answer = table.insert(insert_of(4, 1, leaving=True), slots)
    assert (answer.overrun, answer.not_yet, table.size, table.statistics.overruns) == (True, False, 4, 1)


def test_silent_writers_are_removed(clock: Clock) -> None:
    table, slots = table_with(clock), WaitSlots()
    for writer in "abc":
        table.insert(insert_of(1, 1, writer), slots)
        clock.now += 10.0
    table.remove_silent_writers(20.5)
    assert sorted(table._table.writers) == ["b", "c"]
    table.deregister("c")
    assert table._table.writers == ["b"]
    table.remove_silent_writers(0.0)
    assert table._table.writers == []


def test_silent_writers_are_removed_for_frames(clock: Clock) -> None:
    table, slots = table_with(clock, pictured(4, frame_slots=6)), WaitSlots()

    def pictures(writer: str, sequence: int = 1) -> WriterInsert:
        first = 4 * (sequence - 1)
        frames = np.zeros((4, 2, 2, 1), np.uint8)
        columns = {"number": np.zeros(1, np.int64), "stack": np.array([[first, first + 1]])}
        return WriterInsert(writer, sequence, 1, columns, None, frames, first, first)

    table.insert(pictures("a"), slots)
    clock.now += served_table.SILENT_SECONDS - 1.0
    with pytest.raises(MemoryExhausted, match="writers keep 4 of 6 frames, and 4 more exceed the capacity"):
        table.insert(pictures("b"), slots)
    clock.now += 1.0
    assert not table.insert(pictures("b"), slots).not_yet
    assert table._table.writers == ["b"]


def test_mean_age_follows_samples(clock: Clock) -> None:
    table, slots = table_with(clock), WaitSlots()
    table.insert(insert_of(1, 2), slots)
    table.insert(WriterInsert("w", 2, 1, {"number": np.zeros(1, np.int64)}, np.zeros(1)), slots)
    assert table.statistics.mean_age == 0.0
    table.sample(1000, 0.0, slots)  # items with ages 2 and 1
    assert table.statistics.mean_age == pytest.approx(1.5, abs=0.2)
