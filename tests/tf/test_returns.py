from __future__ import annotations

import numpy as np
import pytest

from relaax.tf.returns import n_step_returns


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def returns(rewards: np.ndarray, discounts: np.ndarray, bootstrap: float) -> list[float]:
    return n_step_returns(rewards, discounts, np.array([bootstrap], np.float32))[:, 0].tolist()


def test_rewards_and_bootstrap_are_discounted() -> None:
    # gamma 0.5, bootstrap 8:  R2 = 4 + 0.5 * 8 = 8;  R1 = 2 + 0.5 * 8 = 6;  R0 = 1 + 0.5 * 6 = 4.
    assert returns(column(1, 2, 4), column(0.5, 0.5, 0.5), 8.0) == [4.0, 6.0, 8.0]


def test_nothing_comes_after_an_end() -> None:
    # The episode ends with the second action:  R2 = 4 + 0.5 * 8 = 8;  R1 = 2;  R0 = 1 + 0.5 * 2 = 2.
    assert returns(column(1, 2, 4), column(0.5, 0.0, 0.5), 8.0) == [2.0, 2.0, 8.0]


def test_an_end_at_the_last_step_takes_no_bootstrap() -> None:
    # R2 = 4;  R1 = 2 + 0.5 * 4 = 4;  R0 = 1 + 0.5 * 4 = 3.
    assert returns(column(1, 2, 4), column(0.5, 0.5, 0.0), 1e6) == [3.0, 4.0, 4.0]


def test_one_step() -> None:
    assert returns(column(-1), column(0.25), 8.0) == [1.0]  # -1 + 0.25 * 8


def test_environments_do_not_mix() -> None:
    rewards = np.array([[1, 10], [2, 20]], np.float32)
    discounts = np.array([[0.5, 0.0], [0.5, 1.0]], np.float32)
    # left: R1 = 2 + 0.5 * 4 = 4, R0 = 1 + 0.5 * 4 = 3;  right: R1 = 20 + 6 = 26, R0 = 10.
    found = n_step_returns(rewards, discounts, np.array([4, 6], np.float32))
    np.testing.assert_array_equal(found, [[3, 10], [4, 26]])
    assert found.dtype == np.float32


def test_arguments_are_left_alone() -> None:
    rewards, discounts, bootstrap = column(1, 2), column(0.5, 0.5), np.array([4], np.float32)
    n_step_returns(rewards, discounts, bootstrap)
    assert (rewards.tolist(), discounts.tolist(), bootstrap.tolist()) == ([[1], [2]], [[0.5], [0.5]], [4])


@pytest.mark.parametrize(("discounts", "bootstrap"), [((3, 1), (2,)), ((2, 2), (2,)), ((2, 1), (1, 1)), ((2, 1), ())])
def test_shapes_that_do_not_fit_are_refused(discounts: tuple[int, ...], bootstrap: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\[T, N\], \[T, N\] and \[N\] are needed, not \(2, 1\)"):
        n_step_returns(column(1, 2), np.ones(discounts, np.float32), np.ones(bootstrap, np.float32))
