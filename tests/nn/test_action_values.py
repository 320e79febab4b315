from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from relaax.nn.action_values import ActionValues


def outputs_of(action_values: ActionValues, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {head: rng.standard_normal((count, width), np.float32) for head, width in action_values.heads.items()}


def test_dueling_selects_the_heads() -> None:
    assert ActionValues(4).heads == {"q": 4}
    assert ActionValues(4, dueling=True).heads == {"value": 1, "advantage": 4}


def test_values_without_dueling_are_the_outputs() -> None:
    q = np.array([[1, -2, 3]], np.float32)
    found = ActionValues(3).values({"q": q})
    assert (found.tolist(), found.dtype) == ([[1, -2, 3]], np.float32)
    assert not np.shares_memory(found, q)  # an engine reuses its outputs
    by_values = np.array([[0, 5, 0]], np.float32)
    assert {head: by.tolist() for head, by in ActionValues(3).gradient(by_values).items()} == {"q": [[0, 5, 0]]}


def test_dueling_values_match_hand_calculation() -> None:
    # 2 + [1, 2, 6] - 3;  -1 + [4, 4, 4] - 4.
    outputs = {
        "value": np.array([[2], [-1]], np.float32),
        "advantage": np.array([[1, 2, 6], [4, 4, 4]], np.float32),
    }
    found = ActionValues(3, dueling=True).values(outputs)
    assert (found.tolist(), found.dtype) == ([[0, 1, 5], [-1, -1, -1]], np.float32)


def test_dueling_gradient_matches_hand_calculation() -> None:
    # By V: the sum. By A_a: the derivative by Q_a minus the mean over all actions.
    by_values = np.array([[3, 0, 0], [1, 2, -6]], np.float32)
    found = ActionValues(3, dueling=True).gradient(by_values)
    assert {head: (by.tolist(), by.dtype) for head, by in found.items()} == {
        "value": ([[3], [-3]], np.float32),
        "advantage": ([[2, -1, -1], [2, 3, -5]], np.float32),
    }
    assert by_values.tolist() == [[3, 0, 0], [1, 2, -6]]


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("choices", [1, 2, 7])
def test_value_gradient_equals_finite_differences(dueling: bool, choices: int) -> None:
    action_values = ActionValues(choices, dueling)
    outputs = outputs_of(action_values, 3)
    weights = np.random.default_rng(4).standard_normal((3, choices), np.float32)

    def loss(outputs: Mapping[str, np.ndarray]) -> float:
        return float((weights * action_values.values(outputs) ** 2).sum())

    found = action_values.gradient(2 * weights * action_values.values(outputs))
    assert found.keys() == outputs.keys()
    for head, output in outputs.items():
        assert (found[head].shape, found[head].dtype) == (output.shape, np.float32)
        for index in np.ndindex(output.shape):
            ends = []
            for move in (0.125, -0.125):
                moved = output.copy()
                moved[index] += move
                ends.append(loss(outputs | {head: moved}))
            assert found[head][index] == pytest.approx((ends[0] - ends[1]) / 0.25, abs=1e-3)


@pytest.mark.parametrize("dueling", [False, True])
def test_non_contiguous_arrays_give_equal_results(dueling: bool) -> None:
    """The host's outputs are columns of a matrix of all heads, and the result of a loss may be transposed."""
    action_values = ActionValues(4, dueling)
    outputs = outputs_of(action_values, 5)
    together = np.concatenate([np.full((5, 2), np.nan, np.float32), *outputs.values()], axis=1)
    ends = np.cumsum([2, *action_values.heads.values()])
    views = {head: together[:, start:end] for head, start, end in zip(outputs, ends, ends[1:], strict=False)}
    assert not any(view.flags.c_contiguous for view in views.values())
    np.testing.assert_array_equal(action_values.values(views), action_values.values(outputs))
    by_values = np.random.default_rng(5).standard_normal((4, 5), np.float32).T
    expected = action_values.gradient(np.ascontiguousarray(by_values))
    for head, by in action_values.gradient(by_values).items():
        np.testing.assert_allclose(by, expected[head], rtol=1e-6, atol=1e-6)


def test_largest_advantage_has_the_largest_value() -> None:
    action_values = ActionValues(6, dueling=True)
    outputs = outputs_of(action_values, 50)
    np.testing.assert_array_equal(action_values.values(outputs).argmax(axis=1), outputs["advantage"].argmax(axis=1))
