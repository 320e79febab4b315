from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base.values import Errors, ValueLoss, huber, squared
from relaax.nn.action_values import ActionValues

EVERYTHING = slice(0, 2)


def f32(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_squared_errors_by_hand() -> None:
    loss, slope = squared(f32(-3, 0.5))
    assert (loss.tolist(), slope.tolist()) == ([9, 0.25], [-6, 1])


def test_huber_loss_by_hand() -> None:
    loss, slope = huber(f32(-3, -0.5, 0, 1, 4))
    assert loss.tolist() == [2.5, 0.125, 0, 0.5, 3.5]
    assert slope.tolist() == [-1, -0.5, 0, 1, 1]


def loss_of(errors: Errors = "squared", dueling: bool = False) -> ValueLoss:
    return ValueLoss(ActionValues(2, dueling), errors, np.array([1, 0]), f32(4, 2), f32(0.5, 1))


def test_only_taken_actions_have_a_derivative() -> None:
    loss = loss_of()
    # Q(s, a) - y: 1 - 4 = -3 with weight 1/2, and 7 - 2 = 5.
    by_outputs = loss({"q": f32([9, 1], [7, 9])}, EVERYTHING)
    assert by_outputs["q"].tolist() == [[0, -3], [10, 0]]
    assert loss.errors.tolist() == [-3, 5]
    assert loss.means == {
        "loss": pytest.approx((4.5 + 25) / 1.5),
        "loss/td_error": pytest.approx((1.5 + 5) / 1.5),
        "q/chosen": pytest.approx((0.5 + 7) / 1.5),
    }


def test_huber_loss_bounds_the_derivative() -> None:
    assert loss_of("huber")({"q": f32([9, 1], [7, 9])}, EVERYTHING)["q"].tolist() == [[0, -0.5], [1, 0]]


def test_loss_in_parts_equals_the_whole() -> None:
    whole, parts = loss_of(), loss_of()
    outputs = f32([9, 1], [7, 9])
    expected = whole({"q": outputs}, EVERYTHING)["q"]
    first, second = (parts({"q": outputs[part]}, part)["q"] for part in (slice(0, 1), slice(1, 2)))
    assert np.concatenate([first, second]).tolist() == expected.tolist()
    assert parts.means == whole.means


def test_void_example_has_no_derivative() -> None:
    loss = ValueLoss(ActionValues(2), "squared", np.array([1, 0]), f32(4, 2), f32(0, 1))
    assert loss({"q": f32([9, 1], [7, 9])}, EVERYTHING)["q"].tolist() == [[0, 0], [10, 0]]
    assert loss.means["loss"] == 25


def test_dueling_heads_share_the_derivative() -> None:
    # Q = V + A - mean A: [3 + 2 - 1, 3 + 0 - 1] = [4, 2]; Q(s, 1) - 4 = -2 with weight 1/2 gives -2 by Q(s, 1).
    loss = loss_of(dueling=True)
    by_outputs = loss({"value": f32([3]), "advantage": f32([2, 0])[:1].reshape(1, 2)}, slice(0, 1))
    assert by_outputs["value"].tolist() == [[-2]]
    assert by_outputs["advantage"].tolist() == [[1, -1]]
