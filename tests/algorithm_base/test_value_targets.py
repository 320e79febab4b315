from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base.agent import StepResult
from relaax.algorithm_base.rollout import rewards_and_discounts
from relaax.algorithm_base.values import greedy_values, n_step_returns, one_step_targets, values_of


def f32(*numbers: object) -> np.ndarray:
    return np.array(numbers, np.float32)


Q = f32([[1, 5], [4, 2]], [[-3, -1], [0, 7]])  # [T = 2, N = 2, A = 2]
ONLINE = f32([[9, 8], [0, 1]], [[2, 1], [3, 3.5]])


def test_values_of_chosen_actions() -> None:
    assert values_of(Q, np.array([[0, 1], [1, 0]])).tolist() == [[1, 2], [-1, 0]]


def test_greedy_values_are_the_largest() -> None:
    assert greedy_values(Q).tolist() == [[5, 4], [-1, 7]]


def test_double_estimates_use_target_values_of_online_actions() -> None:
    # The online network prefers actions 0, 1 and 0, 1. Their values by the target network are 1, 2 and -3, 7.
    assert greedy_values(Q, ONLINE).tolist() == [[1, 2], [-3, 7]]


def test_one_step_targets_of_q_learning_and_sarsa() -> None:
    rewards, discounts = f32([1, 2], [3, 4]), f32([0.5, 0.5], [0.5, 0])
    assert one_step_targets(rewards, discounts, greedy_values(Q)).tolist() == [[3.5, 4], [2.5, 4]]
    taken = np.array([[0, 1], [1, 0]])
    assert one_step_targets(rewards, discounts, values_of(Q, taken)).tolist() == [[1.5, 3], [2.5, 4]]


def targets(**masks: list[int]) -> tuple[list[float], list[list[float]]]:
    """Return one-step and two-step targets of three environments. `masks` apply to the first of two steps.

    The rewards are 1, then 10; gamma is 0.5. The observation after the first step has the value 8,
    that after the second step 32, and a final observation 100.
    """
    flags = {name: np.isin(np.arange(3), masks.get(name, [])) for name in ("terminated", "truncated", "first")}
    marked = StepResult(np.ones(3), [np.zeros((3, 1))], **flags)
    rewards, discounts = np.full((2, 3), 10, np.float32), np.full((2, 3), 0.5, np.float32)
    final = f32(100, 100, 100) if masks.get("truncated") else None
    rewards[0], discounts[0] = rewards_and_discounts(marked, marked.rewards, 0.5, final)
    one = one_step_targets(rewards[0], discounts[0], f32(8, 8, 8))
    return one.tolist(), n_step_returns(rewards, discounts, f32(32, 32, 32)).tolist()


def test_terminated_and_truncated_have_different_targets() -> None:
    one, several = targets(terminated=[0], truncated=[1])
    assert one == [1, 51, 5], "bootstraps: none, the value of the final observation, the value of the next observation"
    # The second step: 10 + 32 / 2 = 26 for all. The first step: 1; 1 + 100 / 2; 1 + 26 / 2.
    assert several == [[1, 51, 14], [26, 26, 26]]


def test_terminated_takes_precedence_over_truncated() -> None:
    one, several = targets(terminated=[1], truncated=[1])
    assert one == [5, 1, 5]
    assert several[0] == [14, 1, 14]


def test_target_of_a_void_step_is_zero() -> None:
    assert targets(first=[2])[0] == [5, 5, 0]


@pytest.mark.parametrize("wrong", [lambda: values_of(Q, np.array([0, 1])), lambda: greedy_values(Q, ONLINE[0])])
def test_mismatched_value_shapes_are_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="must have"):
        wrong()  # type: ignore[operator]


def test_mismatched_one_step_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\), \(2, 1\)"):
        one_step_targets(f32(1, 2), f32([1], [2]), f32(1, 2))
