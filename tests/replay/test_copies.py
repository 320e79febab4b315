"""Copies of a table that is in use."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaax.replay.spec import Field, TableSpec
from relaax.replay.table.table import Table
from relaax.replay.table.writers import UnknownFrames
from support.table_copies import state_of

FRAME = (2, 2, 1)
SPEC = TableSpec(
    "replay",
    {"number": Field("int64"), "stack": Field("uint8", (2, 2, 2), frames=2), "reward": Field("float32")},
    64,
    sampler="prioritized",
    alpha=1.0,
    frame=FRAME,
    frame_slots=80,
)


def insert(table: Table, sequence: int, count: int = 4, writer: str = "w") -> None:
    """Insert items whose frames and rewards depend only on their numbers."""
    first = sequence * 100
    numbers = first + np.arange(count)
    columns = {"number": numbers, "stack": np.stack([numbers, numbers + 1], 1), "reward": rewards(numbers)}
    table.insert(writer, sequence, columns, numbers % 5 + 1.0, pixels(first, count + 1), first, first + count)


def rewards(numbers: Any) -> Any:
    return (numbers / 7).astype(np.float32)


def pixels(first: int, count: int) -> Any:
    return (np.arange(first, first + count)[:, None, None, None] * np.ones(FRAME, np.int64) % 251).astype(np.uint8)


def check(table: Table) -> dict[int, int]:
    """Check that each item is as inserted; return its number by key."""
    if not table.size:
        return {}
    sample = table.sample(2000)
    numbers = sample.columns["number"]
    np.testing.assert_array_equal(sample.columns["reward"], rewards(numbers))
    for step in range(2):
        assert (sample.columns["stack"][..., step] == ((numbers + step) % 251)[:, None, None]).all()
    return dict(zip(sample.keys.tolist(), numbers.tolist(), strict=True))


@pytest.mark.parametrize("remover", ["fifo", "lowest_priority", "inverse_priority"])
@pytest.mark.parametrize("between", [0, 1, 3])
def test_items_overwritten_during_a_copy_are_dropped(remover: str, between: int) -> None:
    table = Table(replace(SPEC, remover=remover), seed=1)
    for sequence in range(1, 20):
        insert(table, sequence)
    before, sequence = check(table), 19
    assert len(before) == table.size == 64
    copy, pieces = table.copy(), []
    for piece in copy.pieces(30):
        pieces.append(piece)
        for _ in range(between if len(pieces) % 16 == 0 else 0):
            sequence += 1
            insert(table, sequence)
    head = copy.head()
    copy.close()
    assert len(pieces) > 30
    restored = Table(table.spec, seed=2)
    restored.restore(head, iter(pieces))
    there, now = check(restored), check(table)
    assert len(there) == restored.size
    assert there.items() <= before.items(), "no later item is in the copy"
    assert (before.keys() & now.keys()) <= there.keys(), "no present item is missing"
    totals = restored.totals
    assert totals.inserted - totals.removed == restored.size
    assert restored.size == 64 if between == 0 else 0 < restored.size < 64
    state = state_of(restored)
    named = {int(slot) for slot in state["columns/stack"].reshape(-1)} | {int(slot) for slot in state["writers/frames"]}
    assert set(state["frames/slots"].tolist()) == named - {80}
    for _ in range(40):  # the restored table is usable
        expected = restored.next_sequence("w")
        insert(restored, expected)
        check(restored)
    assert restored.size == 64


def test_overwritten_items_without_frames_are_dropped() -> None:
    table = Table(TableSpec("plain", {"number": Field("int64")}, 64), seed=1)
    table.insert("w", 1, {"number": np.arange(64)})
    copy, pieces = table.copy(), []
    for piece in copy.pieces(80):
        pieces.append(piece)
        table.insert("w", len(pieces) + 1, {"number": 1000 + np.arange(3)})
    head = copy.head()
    copy.close()
    restored = Table(table.spec, seed=1)
    restored.restore(head, pieces)
    assert len(pieces) == 7
    # Ten items are copied at a time, and the three oldest are evicted after each step: all copied items stay complete.
    assert set(restored.sample(2000).columns["number"].tolist()) == set(range(64))
    pieces.clear()
    copy = table.copy()
    before = state_of(table)["columns/number"]
    for piece in copy.pieces(80):
        pieces.append(piece)
        table.insert("w", table.next_sequence("w"), {"number": 2000 + np.arange(15)})
    head = copy.head()
    copy.close()
    restored = Table(table.spec, seed=1)
    restored.restore(head, pieces)
    # Ten are copied at a time and fifteen evicted: five of the second ten are copied, and none of the third.
    assert set(restored.sample(2000).columns["number"].tolist()) == set(before[[*range(10), *range(15, 20)]].tolist())


def test_overwritten_frames_of_a_writer_are_requested_again() -> None:
    table = Table(SPEC, seed=1)
    columns: dict[str, Any] = {
        "number": np.array([5]),
        "stack": np.array([[5, 6]]),
        "reward": rewards(np.array([5])),
    }
    table.insert("w", 1, columns, None, pixels(5, 4), 5, 5)  # the writer keeps frames 5 to 8
    copy = table.copy()
    pieces = copy.pieces(1)
    kept = [next(pieces), next(pieces)]  # the item, and the first frame
    table.remove_writer("w")
    for sequence in range(1, 30):
        insert(table, sequence, writer="other")
    kept.extend(pieces)
    head = copy.head()
    copy.close()
    restored = Table(SPEC, seed=1)
    restored.restore(head, kept)
    assert restored.size == 0 and restored.next_sequence("w") == 2
    with pytest.raises(UnknownFrames) as unknown:
        restored.insert("w", 2, columns, None, pixels(9, 1), 9, 5)
    assert unknown.value.expected == 2
    restored.insert("w", 2, columns, None, pixels(5, 5), 5, 5)
    assert restored.sample(1).columns["stack"][0, 0, 0].tolist() == [5, 6]


def test_copies_are_consistent_during_inserts_and_samples() -> None:
    spec = replace(SPEC, capacity=3000, frame_slots=4000)
    table = Table(spec, seed=1)
    insert(table, 1)
    stop = threading.Event()

    def write() -> None:
        for sequence in range(2, 10**6):
            if stop.is_set():
                return
            insert(table, sequence, 50)
            check(table)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            copy = table.copy()
            pieces = list(copy.pieces(2000))
            head = copy.head()
            copy.close()
            restored = Table(spec, seed=1)
            restored.restore(head, pieces)
            check(restored)
    finally:
        stop.set()
        writer.join(60)
    assert not writer.is_alive()


def test_incomplete_copy_is_rejected() -> None:
    table = Table(SPEC, seed=1)
    insert(table, 1)
    copy = table.copy()
    pieces = list(copy.pieces(40))
    head = copy.head()
    copy.close()
    for wrong in (pieces[:-1], pieces[1:], [*pieces, pieces[-1]], pieces[:1] + pieces[2:]):
        with pytest.raises(ValueError, match=r"a piece of the state has range|the state has"):
            Table(SPEC, seed=1).restore(head, wrong)
    for name, array in (("free", head["free"][1:]), ("keys", head["keys"][[0, 0, 1, 2]])):
        with pytest.raises(ValueError, match="the state must have|the slots of the state must be unique"):
            Table(SPEC, seed=1).restore({**head, name: array}, pieces)
