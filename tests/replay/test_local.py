from __future__ import annotations

import numpy as np
import pytest

from relaax.replay.interfaces import Insertion
from relaax.replay.local import LocalReplay
from relaax.replay.spec import Field, TableDeclaration, TableSpec

FRAME = (2, 2, 1)
STACKS = TableSpec("stacks", {"image": Field("uint8", (2, 2, 2), frames=2)}, 16, frame=FRAME)
NUMBERS = TableSpec("numbers", {"x": Field("float32")}, 64, sampler="prioritized", alpha=1.0)


def numbers(*values: float, priorities: np.ndarray | None = None) -> Insertion:
    return Insertion({"x": np.array(values, np.float32)}, priorities)


def frames(first: int, end: int) -> np.ndarray:
    return np.arange(first, end, dtype=np.uint8)[:, None, None, None] * np.ones(FRAME, np.uint8)


def test_environments_are_distributed_over_writers() -> None:
    replay = LocalReplay(TableDeclaration(NUMBERS), 5, groups=2)
    assert [writer.environments.tolist() for writer in replay.writers] == [[0, 2, 4], [1, 3]]
    assert LocalReplay(TableDeclaration(NUMBERS)).writers == []


def test_items_are_drawn_in_proportion_to_their_priorities() -> None:
    replay = LocalReplay(TableDeclaration(NUMBERS), 2, groups=2)
    first, second = replay.writers
    assert replay.sample(1, timeout=0.0) is None
    first.insert(numbers(1, 2, priorities=np.array([0.0, 1.0])))
    second.insert(numbers(3, priorities=np.array([3.0])))
    sampled = replay.sample(400, timeout=0.0)
    assert sampled is not None
    assert set(sampled.columns["x"].tolist()) == {2, 3}
    assert sampled.size == 3
    np.testing.assert_allclose(sampled.probabilities, np.where(sampled.columns["x"] == 3, 0.75, 0.25))
    replay.update_priorities(sampled, np.where(sampled.columns["x"] == 3, 0.0, 1.0))
    again = replay.sample(20, timeout=0.0)
    assert again is not None
    assert set(again.columns["x"].tolist()) == {2}


def test_inserts_and_samples_keep_to_the_limits() -> None:
    declaration = TableDeclaration(NUMBERS, samples_per_insert=2.0, min_size=4, error_buffer=4.0)
    replay = LocalReplay(declaration, 1)
    (writer,) = replay.writers
    writer.insert(numbers(1, 2))
    assert replay.sample(1, timeout=0.0) is None
    writer.insert(numbers(3, 4))
    assert replay.sample(4, timeout=0.0) is not None
    assert replay.sample(1, timeout=0.0) is None
    for _ in range(3):
        writer.insert(numbers(5, 6))  # continues without the learner
    assert replay.limiter.overruns == 2
    assert replay.sample(4, timeout=0.0) is not None


def test_writer_sends_each_frame_once() -> None:
    replay = LocalReplay(TableDeclaration(STACKS), 1)
    (writer,) = replay.writers
    writer.insert(Insertion({"image": np.array([[0, 1], [1, 2]])}, frames=frames(0, 3), first_frame=0))
    writer.insert(Insertion({"image": np.array([[2, 3], [3, 4]])}, frames=frames(1, 5), first_frame=1))
    writer.insert(Insertion({"image": np.array([[4, 4]])}, frames=frames(4, 5), first_frame=4))
    assert replay.table.frames == 5
    sampled = replay.sample(60, timeout=0.0)
    assert sampled is not None
    seen = {tuple(stack[0, 0].tolist()) for stack in sampled.columns["image"]}
    assert seen == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)}
    replay.close()
    assert replay.table.frames == 5, "frames that items use stay"


def test_rejected_insert_is_not_counted() -> None:
    replay = LocalReplay(TableDeclaration(NUMBERS), 1)
    (writer,) = replay.writers
    with pytest.raises(ValueError, match="fields"):
        writer.insert(Insertion({"y": np.zeros(1, np.float32)}))
    assert replay.limiter.inserts == 0
    writer.insert(numbers(1))
    assert replay.table.size == 1
