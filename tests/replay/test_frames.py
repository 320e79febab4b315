from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relaax.replay.spec import Field, TableSpec
from relaax.replay.table.frame_store import FrameStore
from relaax.replay.table.table import Table, Totals
from relaax.replay.table.writers import UnknownFrames
from support.table_copies import state_of

H = 3
FRAME = (4, 3, 2)
STACK = Field("uint8", (4, 3, 2 * H), frames=H)
SPEC = TableSpec(
    "atari", {"observation": STACK, "following": STACK, "step": Field("int64")}, 20, frame=FRAME, frame_slots=40
)


def frame(number: int) -> np.ndarray:
    """A frame that encodes its number; it is never all zeros."""
    return np.random.default_rng(number).integers(1, 256, FRAME, dtype=np.uint8)


def frames(first: int, count: int) -> np.ndarray:
    return np.stack([frame(number) for number in range(first, first + count)]) if count else np.zeros((0, *FRAME), "u1")


def stack(numbers: list[int]) -> np.ndarray:
    return np.concatenate([np.zeros(FRAME, np.uint8) if n < 0 else frame(n) for n in numbers], axis=-1)


def numbers(last: int, start: int) -> list[int]:
    """The frame numbers of a stack that ends with `last`, in an episode that starts with frame `start`."""
    return [number if number >= start else -1 for number in range(last - H + 1, last + 1)]


def items(*steps: tuple[int, int]) -> dict[str, np.ndarray]:
    """Transitions from (frame, first frame of the episode) to the next frame."""
    return {
        "observation": np.array([numbers(step, start) for step, start in steps], np.int64).reshape(-1, H),
        "following": np.array([numbers(step + 1, start) for step, start in steps], np.int64).reshape(-1, H),
        "step": np.array([step for step, _ in steps], np.int64),
    }


def check_stacks(table: Table, starts: dict[int, int], count: int = 50) -> None:
    sample = table.sample(count)
    for index, step in enumerate(sample.columns["step"].tolist()):
        start = starts[step]
        np.testing.assert_array_equal(sample.columns["observation"][index], stack(numbers(step, start)))
        np.testing.assert_array_equal(sample.columns["following"][index], stack(numbers(step + 1, start)))


@pytest.mark.parametrize("shape", [(5, 4, 1), (3, 2, 3)])
@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_stacks_are_concatenated_frames(shape: tuple[int, int, int], length: int) -> None:
    store = FrameStore(9, shape)
    rng = np.random.default_rng(0)
    given = rng.integers(0, 256, (9, *shape), dtype=np.uint8)
    slots = store.put(given)
    there = dict(zip(slots.tolist(), given, strict=True)) | {store.zeros: np.zeros(shape, np.uint8)}
    wanted = rng.integers(0, 10, (6, length)).astype(np.int32)
    expected = [np.concatenate([there[slot] for slot in row], axis=-1) for row in wanted.tolist()]
    np.testing.assert_array_equal(store.stacks(wanted), expected)


def test_stacks_do_not_cross_the_start_of_an_episode() -> None:
    table = Table(SPEC, seed=0)
    starts: dict[int, int] = {}
    rng = np.random.default_rng(0)
    step = start = sent = 0
    for sequence in range(1, 120):
        batch = []
        for _ in range(int(rng.integers(1, 5))):
            batch.append((step, start))
            starts[step] = start
            step += 1
            if rng.random() < 0.3:  # the episode ends with frame `step`, the next one begins with the frame after it
                step = start = step + 1
        table.insert("w", sequence, items(*batch), None, frames(sent, step + 1 - sent), sent, max(start, step - H + 1))
        sent = step + 1
        check_stacks(table, starts, 5)
        assert table.frames <= SPEC.frame_capacity
    assert table.size > 10


def test_frame_is_stored_once_and_freed_after_its_last_use() -> None:
    table = Table(SPEC, seed=0)
    table.insert("w", 1, items(*((step, 0) for step in range(10))), None, frames(0, 11), 0, 8)
    assert table.frames == 11  # it would be 60 if transitions did not share frames
    table.insert("w", 2, items((10, 0)), None, frames(11, 1), 11, 12)
    assert table.frames == 12
    table.remove_writer("w")
    assert table.frames == 12
    table.insert("v", 1, items(*((step, 100) for step in range(100, 120))), None, frames(100, 21), 100, 121)
    assert (table.size, table.frames) == (20, 21)  # the earlier items and frames are gone
    table.remove_writer("v")
    assert table.frames == 21


def test_writer_keeps_frames_that_no_item_uses() -> None:
    table = Table(SPEC, seed=0)
    table.insert("w", 1, items(), None, frames(0, 5), 0, 3)
    assert table.frames == 2
    table.insert("w", 2, items((3, 3)), keep_from=4)
    assert table.frames == 2
    table.insert("w", 3, items(), keep_from=50)
    assert table.frames == 2  # the frames of the item
    check_stacks(table, {3: 3})
    table.insert("w", 4, items((5, 5)), None, frames(5, 2), 5, 7)
    check_stacks(table, {3: 3, 5: 5})


@pytest.mark.parametrize(
    ("step", "start", "frame_count", "missing"),
    [(5, 0, 0, 3), (3, 0, 0, 1), (4, 4, 0, 5), (4, 4, 1, None)],
    ids=["newer than any", "older than kept", "not yet sent", "there"],
)
def test_unknown_frames_are_rejected_without_a_change(
    step: int, start: int, frame_count: int, missing: int | None
) -> None:
    table = Table(SPEC, seed=0)
    table.insert("w", 1, items((0, 0), (1, 0), (2, 0), (3, 0)), None, frames(0, 5), 0, 4)
    arguments = "w", 2, items((step, start)), None, frames(5, frame_count), 5, 5
    if missing is None:
        table.insert(*arguments)
        return
    with pytest.raises(UnknownFrames, match=f"frame {missing} is unknown") as refused:
        table.insert(*arguments)
    assert refused.value.expected == 2
    assert (table.size, table.frames, table.totals) == (4, 5, Totals(inserted=4))
    # The writer starts anew: it sends all frames of the item again, with new numbers.
    table.insert("w", 2, items((step, start)), None, frames(start, step + 2 - start), start, step)
    check_stacks(table, {0: 0, 1: 0, 2: 0, 3: 0} | {step: start})


def test_unknown_writer_cannot_use_earlier_frames() -> None:
    table = Table(SPEC, seed=0)
    with pytest.raises(UnknownFrames, match="the writer has 0 frames"):
        table.insert("w", 1, items((7, 5)))
    with pytest.raises(UnknownFrames):
        table.insert("w", 1, items((7, 5)), None, frames(7, 2), 7)
    assert (table.size, table.frames) == (0, 0)
    table.insert("w", 1, items((7, 5)), None, frames(5, 4), 5)
    check_stacks(table, {7: 5})


def test_writer_that_restarts_its_frames_releases_the_old_ones() -> None:
    table = Table(SPEC, seed=0)
    table.insert("w", 1, items(), None, frames(0, 40), 0)
    assert table.frames == 40
    table.insert("w", 2, items(), None, frames(100, 40), 100)
    assert table.frames == 40
    with pytest.raises(UnknownFrames):
        table.insert("w", 3, items((38, 38)))


def test_oldest_items_are_evicted_if_the_frame_store_is_full() -> None:
    table = Table(replace(SPEC, frame_slots=10), seed=0)
    for sequence in range(1, 30):  # an episode of one step needs two frames
        step = 2 * (sequence - 1)
        table.insert("w", sequence, items((step, step)), None, frames(step, 2), step, step + 2)
        check_stacks(table, {earlier: earlier for earlier in range(0, step + 1, 2)}, 5)
        assert table.size == min(sequence, 5)
    assert table.sample(200).ages.max() == 4


def test_frames_beyond_the_store_are_rejected_without_a_change() -> None:
    table = Table(replace(SPEC, frame_slots=10), seed=0)
    table.insert("v", 1, items((0, 0)), None, frames(0, 2), 0, 2)
    table.insert("w", 1, items(), None, frames(0, 6), 0)
    with pytest.raises(ValueError, match="writers keep 6 of 10 frames, and 5 more exceed the capacity"):
        table.insert("w", 2, items(), None, frames(6, 5), 6)
    assert (table.size, table.frames) == (1, 8)
    table.insert("w", 2, items(), None, frames(6, 4), 6)
    assert (table.size, table.frames) == (0, 10)


def test_malformed_frames_are_rejected() -> None:
    table = Table(SPEC, seed=0)
    with pytest.raises(ValueError, match="frames must be uint8 \\['F', 4, 3, 2\\], not uint8 \\[1, 4, 3, 1\\]"):
        table.insert("w", 1, items(), None, np.zeros((1, 4, 3, 1), np.uint8))
    with pytest.raises(ValueError, match="not float64"):
        table.insert("w", 1, items(), None, np.zeros((1, *FRAME)))
    with pytest.raises(ValueError, match="first_frame must be at least 0"):
        table.insert("w", 1, items(), None, frames(0, 1), -1)
    with pytest.raises(UnknownFrames, match="frame -2"):
        table.insert(
            "w", 1, items() | items((0, 0)) | {"observation": np.full((1, H), -2, np.int64)}, None, frames(0, 2)
        )


@pytest.mark.parametrize("remover", ["fifo", "lowest_priority", "inverse_priority"])
def test_random_inserts_leak_no_frames(remover: str) -> None:
    """After random inserts of several writers, exactly the frames that items and writers need are stored."""
    table = Table(replace(SPEC, remover=remover, sampler="prioritized", frame_slots=60), seed=0)
    rng = np.random.default_rng(0)
    ends, sequences = [0, 1000, 2000], [0, 0, 0]  # each writer's next frame
    starts: dict[int, int] = {}
    for _ in range(400):
        writer = int(rng.integers(3))
        count, start = int(rng.integers(0, 5)), ends[writer]
        steps = [(start + index, start) for index in range(count)]
        starts |= dict(steps)
        sequences[writer] += 1
        new = frames(start, count + 1)
        keep_from = start + int(rng.integers(0, count + 3))
        priorities = rng.random(count)
        table.insert(f"w{writer}", sequences[writer], items(*steps), priorities, new, start, keep_from)
        ends[writer] = start + count + 1
        if table.size:
            check_stacks(table, starts, 3)
    state = state_of(table)
    named = {int(slot) for name in ("observation", "following") for slot in state[f"columns/{name}"].reshape(-1)}
    kept = {int(slot) for slot in state["writers/frames"]}
    assert set(state["frames/slots"].tolist()) == (named | kept) - {60}
    assert table.frames == len(state["frames/slots"])
