from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base.observations import FrameStack

# Stacks of 2, 4 and 8 bytes are shifted as integers, the others element by element.
LENGTHS = [1, 2, 3, 4, 5, 8]
NOBODY = np.zeros(2, np.bool_)
FRAME = (2, 3)


def frame(*shades: int, dtype: Any = np.uint8) -> np.ndarray:
    """Return one frame for each environment; all its pixels have the same shade."""
    return np.array([np.full(FRAME, shade) for shade in shades], dtype)


def shades(stack: np.ndarray, environment: int) -> list[int]:
    """Return the shade of each frame, oldest first. All pixels of a frame must have the same shade."""
    pixels = stack[environment].reshape(-1, stack.shape[-1])
    assert (pixels == pixels[0]).all()
    return pixels[0].tolist()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_newest_frame_is_last(length: int, dtype: Any) -> None:
    stack = FrameStack(2, FRAME, dtype, length)
    stack.reset(frame(1, 101, dtype=dtype))
    for shade in range(2, 12):
        seen = stack.push(frame(shade, 100 + shade, dtype=dtype), NOBODY)
        newest = [max(1, shade - length + 1 + i) for i in range(length)]
        assert shades(seen, 0) == newest
        assert shades(seen, 1) == [100 + number for number in newest]
    assert seen.shape == (2, *FRAME, length)
    assert seen.dtype == dtype
    assert seen is stack.frames


@pytest.mark.parametrize("length", LENGTHS)
def test_new_episode_repeats_its_first_frame(length: int) -> None:
    stack = FrameStack(2, FRAME, np.uint8, length)
    stack.reset(frame(1, 101))
    stack.push(frame(2, 102), NOBODY)
    seen = stack.push(frame(200, 103), np.array([True, False]))
    assert shades(seen, 0) == [200] * length
    assert shades(seen, 1) == [101, 101, 101, 101, 101, 101, 102, 103][-length:]
    seen = stack.push(frame(201, 104), NOBODY)
    assert shades(seen, 0) == ([200] * length + [201])[-length:]


@pytest.mark.parametrize("length", LENGTHS)
def test_reset_replaces_all_frames(length: int) -> None:
    stack = FrameStack(2, FRAME, np.uint8, length)
    stack.reset(frame(255, 255))
    stack.push(frame(255, 255), NOBODY)
    seen = stack.reset(frame(3, 4))
    assert shades(seen, 0) == [3] * length
    assert shades(seen, 1) == [4] * length


@pytest.mark.parametrize("length", LENGTHS)
def test_peek_returns_the_push_without_changing_the_stack(length: int) -> None:
    peeking, pushing = FrameStack(2, FRAME, np.uint8, length), FrameStack(2, FRAME, np.uint8, length)
    for stack in (peeking, pushing):
        stack.reset(frame(1, 101))
        stack.push(frame(2, 102), NOBODY)
    before = peeking.frames.copy()
    peeked = peeking.peek(frame(99, 199))
    np.testing.assert_array_equal(peeking.frames, before)
    np.testing.assert_array_equal(peeked, pushing.push(frame(99, 199), NOBODY))
    assert not np.shares_memory(peeked, peeking.frames)


@pytest.mark.parametrize("length", LENGTHS)
def test_stack_keeps_the_position_of_pixels(length: int) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (length + 3, 2, *FRAME)).astype(np.uint8)
    stack = FrameStack(2, FRAME, np.uint8, length)
    stack.reset(frames[0])
    for one in frames[1:]:
        stack.push(one, NOBODY)
    for age in range(length):
        np.testing.assert_array_equal(stack.frames[..., length - 1 - age], frames[-1 - age])


def test_frames_with_channels_are_stacked() -> None:
    stack = FrameStack(1, (2, 2, 3), np.uint8, 2)
    first, second = (np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3) + add for add in (0, 100))
    stack.reset(first)
    seen = stack.push(second, np.zeros(1, np.bool_))
    np.testing.assert_array_equal(seen[..., 0], first)
    np.testing.assert_array_equal(seen[..., 1], second)
