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


def test_margin_by_hand() -> None:
    # Item 0, action 1: max(9 + 0.8, 1) - 1 = 8.8 with weight 2 x 0.5. Item 1, action 0: max(7, 6 + 0.8) - 7 = 0.
    loss = ValueLoss(ActionValues(2), "squared", np.array([1, 0]), f32(1, 7), f32(0.5, 1), f32(2, 2))
    assert loss({"q": f32([9, 1], [7, 6])}, EVERYTHING)["q"].tolist() == [[1, -1], [0, 0]]
    assert loss.means["loss"] == 0
    assert loss.means["loss/margin"] == pytest.approx(8.8 / 1.5)


@pytest.mark.parametrize("dueling", [False, True])
def test_derivative_with_margins_is_that_of_the_loss(dueling: bool) -> None:
    rng = np.random.default_rng(3)
    values, count = ActionValues(4, dueling), 12
    actions, targets, weights = rng.integers(0, 4, count), rng.normal(size=count), rng.random(count)
    margins = rng.integers(0, 2, count) * 1.5
    outputs = {name: rng.normal(size=(count, width)).astype(np.float32) for name, width in values.heads.items()}

    def total(changed: dict[str, np.ndarray]) -> float:
        q = values.values(changed).astype(np.float64)
        chosen = q[np.arange(count), actions]
        above = q + 0.8
        above[np.arange(count), actions] = chosen
        return float(np.dot(weights, (chosen - targets) ** 2 + margins * (above.max(axis=1) - chosen)))

    given = (f32(*each) for each in (targets, weights, margins))
    found = ValueLoss(values, "squared", actions, *given)(outputs, slice(0, count))
    for name, array in outputs.items():
        for index in np.ndindex(array.shape):
            shift = np.zeros_like(array)
            shift[index] = 1e-3
            slope = (total({**outputs, name: array + shift}) - total({**outputs, name: array - shift})) / 2e-3
            assert found[name][index] == pytest.approx(slope, abs=3e-3)
