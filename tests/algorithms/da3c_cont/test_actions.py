from __future__ import annotations

import numpy as np
import pytest

from algorithms.da3c_cont.actions import ActionMap, action_refusal
from relaax.algorithm_base import Box, Dict, Discrete, Space, Tuple

U = np.array([[-1.0, -1.0, -1.0], [0.5, 0.5, 0.5], [7.0, 7.0, 7.0]], np.float32)


def test_one_unit_to_each_side_spans_the_bounds() -> None:
    (actions,) = ActionMap(Box([-2, 0, -0.5], [2, 10, -0.25]))(U)
    assert actions.tolist() == [[-2.0, 0.0, -0.5], [1.0, 7.5, -0.3125], [2.0, 10.0, -0.25]]
    assert actions.dtype == np.float32


def test_what_has_no_bound_is_taken_as_it_is() -> None:
    (actions,) = ActionMap(Box([-np.inf, 0, -np.inf], [np.inf, np.inf, 3]))(U)
    assert actions.tolist() == [[-1.0, 0.0, -1.0], [0.5, 0.5, 0.5], [7.0, 7.0, 3.0]]


def test_the_largest_bounds_are_no_reason_for_infinity() -> None:
    largest = float(np.finfo(np.float64).max)
    (actions,) = ActionMap(Box(-largest, largest, shape=(3,), dtype="float64"))(np.float32(0.5) * np.ones((1, 3)))
    assert actions.tolist() == [[largest / 2] * 3]


def test_rounding_stays_within_the_bounds() -> None:
    box = Box(np.float32(0.1), np.float32(0.7), shape=(1,))
    for u in np.linspace(-1.5, 1.5, 301, dtype=np.float32):
        (actions,) = ActionMap(box)(np.array([[u]]))
        assert box.low[0] <= actions[0, 0] <= box.high[0]


def test_parts_of_a_space_share_the_numbers_of_an_action() -> None:
    space = Dict({"b": Tuple([Box(-1, 1, shape=(2, 1)), Box(0, 4, shape=())]), "a": Box(shape=(1,), dtype="float64")})
    u = np.array([[5.0, 0.25, -0.25, 0.5]], np.float32)
    a, b0, b1 = ActionMap(space)(u)
    assert (a.tolist(), b0.tolist(), b1.tolist()) == ([[5.0]], [[[0.25], [-0.25]]], [3.0])
    assert (a.dtype, b0.dtype) == (np.float64, np.float32)


@pytest.mark.parametrize(
    ("space", "more"),
    [
        (Discrete(2), "; da3c handles Discrete, MultiDiscrete and MultiBinary"),
        (Box(0, 3, shape=(2,), dtype="int64"), ""),
        (Tuple([Box(), Discrete(2)]), ""),
    ],
)
def test_what_is_refused(space: Space, more: str) -> None:
    assert action_refusal(space) == f"it handles Box of real numbers, and Tuple or Dict of them{more}"
    assert action_refusal(Box(shape=(2,))) is None
