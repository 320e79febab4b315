from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from relaax.algorithm_base.network import input_refusal, input_shape, is_image
from relaax.algorithm_base.observations import ObservationEncoder

NOBODY = np.zeros(2, np.bool_)


def test_vectors_pass_through_as_float32() -> None:
    encoder = ObservationEncoder(Box(shape=(2, 2), dtype=np.float64), 2, 4)
    leaf = np.arange(8, dtype=np.float64).reshape(2, 2, 2)
    for inputs in (encoder.reset([leaf]), encoder.push([leaf], NOBODY), encoder.peek([leaf])):
        assert inputs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert inputs.dtype == encoder.dtype == np.float32
    assert encoder.shape == (4,)


def test_discrete_observation_is_one_hot() -> None:
    encoder = ObservationEncoder(Discrete(3, start=-1), 3, 4)
    assert encoder.reset([np.array([-1, 0, 1])]).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert encoder.shape == (3,)


def test_invalid_values_in_unused_rows_are_accepted() -> None:
    # If an episode has not ended, its row of the final observations may hold any value.
    encoder = ObservationEncoder(Discrete(3, start=100), 2, 4)
    assert encoder.peek([np.array([102, 0])]).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert encoder.peek([np.array([-(2**63), 2**63 - 1])]).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_parts_are_concatenated_in_the_order_of_the_space() -> None:
    space = Dict({"b": Discrete(2), "a": Box(shape=(2,)), "c": Tuple([MultiBinary(2), Box(shape=(), dtype=np.int32)])})
    leaves = [
        np.array([[1, 2], [3, 4]], np.float32),
        np.array([0, 1]),
        np.array([[0, 1], [1, 0]], np.int8),
        np.array([-5, 6], np.int32),
    ]
    encoder = ObservationEncoder(space, 2, 4)
    assert encoder.reset(leaves).tolist() == [[1, 2, 1, 0, 0, 1, -5], [3, 4, 0, 1, 1, 0, 6]]
    assert encoder.shape == input_shape(space, 4) == (7,)


def test_only_large_uint8_parts_are_scaled() -> None:
    space = Tuple([Box(0, 255, (16, 16), np.uint8), Box(0, 255, (7, 7), np.uint8), Box(0, 255, (2,), np.uint8)])
    encoder = ObservationEncoder(space, 1, 4)
    inputs = encoder.reset([np.full((1, *element.shape), 51, np.uint8) for element in space.elements()])
    assert inputs.dtype == np.float32
    assert inputs[0, :256] == pytest.approx(0.2)
    assert set(inputs[0, 256:].tolist()) == {51.0}, "small uint8 parts may be counts, so they are not scaled"


@pytest.mark.parametrize("history", [3, 4])
def test_images_are_stacked(history: int) -> None:
    encoder = ObservationEncoder(Box(0, 255, shape=(2, 3), dtype=np.uint8), 2, history)
    first, second = np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 9, np.uint8)
    assert encoder.reset([first]).shape == (2, *encoder.shape) == (2, 2, 3, history)
    peeked = encoder.peek([second])
    pushed = encoder.push([second], np.array([False, True]))
    assert peeked[0, 0, 0].tolist() == peeked[1, 0, 0].tolist() == [0] * (history - 1) + [9]
    assert pushed[0, 0, 0].tolist() == [0] * (history - 1) + [9]
    assert pushed[1, 0, 0].tolist() == [9] * history
    assert pushed.dtype == encoder.dtype == np.uint8


def test_channels_and_history_share_an_axis() -> None:
    space = Box(0, 255, shape=(2, 2, 3), dtype=np.uint8)
    encoder = ObservationEncoder(space, 1, 2)
    colours = np.broadcast_to(np.array([10, 20, 30], np.uint8), (1, 2, 2, 3))
    encoder.reset([colours])
    assert encoder.push([colours + 1], NOBODY[:1])[0, 0, 0].tolist() == [10, 11, 20, 21, 30, 31]
    assert encoder.shape == (2, 2, 6)


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (Box(0, 255, shape=(84, 84), dtype=np.uint8), True),
        (Box(0, 255, shape=(84, 84, 3), dtype=np.uint8), True),
        (Box(0, 255, shape=(84,), dtype=np.uint8), False),
        (Box(0, 255, shape=(84, 84, 3, 2), dtype=np.uint8), False),
        (Box(0, 1, shape=(84, 84)), False),
        (Tuple([Box(0, 255, shape=(84, 84), dtype=np.uint8)]), False),
    ],
    ids=str,
)
def test_is_image_requires_a_uint8_box_of_2_or_3_axes(space: Space, image: bool) -> None:
    assert is_image(space) == image


def test_part_with_too_many_choices_is_named() -> None:
    assert input_refusal(Tuple([Box(shape=(2,)), Discrete(10_000), MultiBinary(3), MultiDiscrete([3, 4])])) is None
    sentence = input_refusal(Dict({"a": Box(shape=(2,)), "b": MultiDiscrete([9_000, 1_001])}))
    assert sentence == (
        "observations in MultiDiscrete([9000, 1001]) would need 10001 inputs; at most 10000 are supported"
    )
    assert "at most 10000" in (input_refusal(Discrete(10_001)) or "")


def test_choices_become_one_hot_vectors() -> None:
    encoder = ObservationEncoder(MultiDiscrete([2, 3]), 2, 1)
    assert encoder.shape == (5,)
    assert encoder.reset([np.array([[1, 0], [0, 2]])]).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_values_beyond_float32_are_clamped() -> None:
    encoder = ObservationEncoder(Box(shape=(3,), dtype="float64"), 1, 1)
    inputs = encoder.reset([np.array([[1e300, -1e300, 0.5]])])
    largest = np.finfo(np.float32).max
    assert inputs.dtype == np.float32
    assert inputs.tolist() == [[largest, -largest, 0.5]]


IMAGE_AND_NUMBERS = Dict({"speed": Box(shape=(2,)), "camera": Box(0, 255, (2, 1, 2), np.uint8), "turn": Discrete(2)})


def seen(camera: int, speed: float, turn: int) -> list[np.ndarray]:
    """Return an observation of `IMAGE_AND_NUMBERS`; the second channel is brighter by 1."""
    pixels = np.array([[[[camera, camera + 1]], [[camera, camera + 1]]]], np.uint8)
    return [pixels, np.array([[speed, -speed]], np.float32), np.array([turn])]


def test_image_precedes_numbers_and_only_it_has_history() -> None:
    encoder = ObservationEncoder(IMAGE_AND_NUMBERS, 1, 2, image=0)
    assert encoder.shape == input_shape(IMAGE_AND_NUMBERS, 2, 0) == (12,)
    first = encoder.reset(seen(10, 0.5, 0))
    assert first.dtype == encoder.dtype == np.float32
    np.testing.assert_allclose(first[0, :8] * 255, [10, 10, 11, 11] * 2, rtol=1e-6)
    assert first[0, 8:].tolist() == [0.5, -0.5, 1, 0]
    peeked, pushed = encoder.peek(seen(20, 3, 1)), encoder.push(seen(20, 3, 1), np.array([False]))
    np.testing.assert_array_equal(peeked, pushed)
    np.testing.assert_allclose(pushed[0, :8] * 255, [10, 20, 11, 21] * 2, rtol=1e-6)
    assert pushed[0, 8:].tolist() == [3, -3, 0, 1]
    again = encoder.push(seen(30, 1, 1), np.array([True]))
    np.testing.assert_allclose(again[0, :8] * 255, [30, 30, 31, 31] * 2, rtol=1e-6)
    np.testing.assert_allclose(
        pushed[0, :8] * 255, [10, 20, 11, 21] * 2, rtol=1e-6
    )  # not a view of the encoder's buffer


def test_image_may_be_the_only_part() -> None:
    encoder = ObservationEncoder(Tuple([Box(False, True, (1, 1, 2), np.bool_)]), 1, 2, image=0)
    assert encoder.reset([np.array([[[[True, False]]]])]).tolist() == [[1, 1, 0, 0]]
