from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base.values import generalized_advantages, n_step_returns


def column(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def returns(rewards: np.ndarray, discounts: np.ndarray, bootstrap: float) -> list[float]:
    return n_step_returns(rewards, discounts, np.array([bootstrap], np.float32))[:, 0].tolist()


def test_rewards_and_bootstrap_are_discounted() -> None:
    # gamma 0.5, bootstrap 8:  R2 = 4 + 0.5 * 8 = 8;  R1 = 2 + 0.5 * 8 = 6;  R0 = 1 + 0.5 * 6 = 4.
    assert returns(column(1, 2, 4), column(0.5, 0.5, 0.5), 8.0) == [4.0, 6.0, 8.0]


def test_return_stops_at_the_end_of_an_episode() -> None:
    # The episode ends with the second action:  R2 = 4 + 0.5 * 8 = 8;  R1 = 2;  R0 = 1 + 0.5 * 2 = 2.
    assert returns(column(1, 2, 4), column(0.5, 0.0, 0.5), 8.0) == [2.0, 2.0, 8.0]


def test_end_at_the_last_step_ignores_the_bootstrap() -> None:
    # R2 = 4;  R1 = 2 + 0.5 * 4 = 4;  R0 = 1 + 0.5 * 4 = 3.
    assert returns(column(1, 2, 4), column(0.5, 0.5, 0.0), 1e6) == [3.0, 4.0, 4.0]


def test_return_of_one_step() -> None:
    assert returns(column(-1), column(0.25), 8.0) == [1.0]  # -1 + 0.25 * 8


def test_environments_do_not_mix() -> None:
    rewards = np.array([[1, 10], [2, 20]], np.float32)
    discounts = np.array([[0.5, 0.0], [0.5, 1.0]], np.float32)
    # left: R1 = 2 + 0.5 * 4 = 4, R0 = 1 + 0.5 * 4 = 3;  right: R1 = 20 + 6 = 26, R0 = 10.
    found = n_step_returns(rewards, discounts, np.array([4, 6], np.float32))
    np.testing.assert_array_equal(found, [[3, 10], [4, 26]])
    assert found.dtype == np.float32


def test_returns_do_not_modify_their_arguments() -> None:
    rewards, discounts, bootstrap = column(1, 2), column(0.5, 0.5), np.array([4], np.float32)
    n_step_returns(rewards, discounts, bootstrap)
    assert (rewards.tolist(), discounts.tolist(), bootstrap.tolist()) == ([[1], [2]], [[0.5], [0.5]], [4])


@pytest.mark.parametrize(("discounts", "bootstrap"), [((3, 1), (2,)), ((2, 2), (2,)), ((2, 1), (1, 1)), ((2, 1), ())])
def test_mismatched_shapes_are_refused(discounts: tuple[int, ...], bootstrap: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shapes \[T, N\], \[T, N\] and \[N\], not \(2, 1\)"):
        n_step_returns(column(1, 2), np.ones(discounts, np.float32), np.ones(bootstrap, np.float32))


def advantages(
    rewards: np.ndarray, discounts: np.ndarray, values: np.ndarray, bootstrap: float, lambda_: float
) -> list[float]:
    found = generalized_advantages(rewards, discounts, values, np.array([bootstrap], np.float32), lambda_)
    assert found.dtype == np.float32
    return found[:, 0].tolist()


def test_advantages_by_hand() -> None:
    # gamma 0.5, lambda 0.5, values 1, 2, 3, then 8.  deltas: 1 + 1 - 1 = 1;  2 + 1.5 - 2 = 1.5;  4 + 4 - 3 = 5.
    # A2 = 5;  A1 = 1.5 + 0.25 * 5 = 2.75;  A0 = 1 + 0.25 * 2.75 = 1.6875.
    found = advantages(column(1, 2, 4), column(0.5, 0.5, 0.5), column(1, 2, 3), 8.0, 0.5)
    assert found == [1.6875, 2.75, 5.0]


def test_advantages_stop_at_the_end_of_an_episode() -> None:
    # The episode ends with the second action.  deltas: 1 + 1 - 1 = 1;  2 - 2 = 0;  4 + 4 - 3 = 5.
    # A2 = 5;  A1 = 0, neither the next value nor the next advantage counts;  A0 = 1 + 0.25 * 0 = 1.
    found = advantages(column(1, 2, 4), column(0.5, 0.0, 0.5), column(1, 2, 3), 8.0, 0.5)
    assert found == [1.0, 0.0, 5.0]


def test_lambda_0_gives_the_one_step_error() -> None:
    found = advantages(column(1, 2, 4), column(0.5, 0.5, 0.5), column(1, 2, 3), 8.0, 0.0)
    assert found == [1.0, 1.5, 5.0]


def test_lambda_1_gives_return_minus_value() -> None:
    # Returns 4, 6, 8, as above.
    found = advantages(column(1, 2, 4), column(0.5, 0.5, 0.5), column(1, 2, 3), 8.0, 1.0)
    assert found == [3.0, 4.0, 5.0]


def test_lambda_1_equals_n_step_returns_with_random_ends() -> None:
    rng = np.random.default_rng(4)
    rewards, values = rng.normal(size=(2, 20, 3)).astype(np.float32)
    discounts = np.where(rng.random((20, 3)) < 0.2, 0, 0.97).astype(np.float32)
    bootstrap = rng.normal(size=3).astype(np.float32)
    found = generalized_advantages(rewards, discounts, values, bootstrap, 1.0)
    np.testing.assert_allclose(found, n_step_returns(rewards, discounts, bootstrap) - values, atol=1e-5)


def test_advantages_do_not_modify_their_arguments() -> None:
    given = [column(1, 2), column(0.5, 0.5), column(3, 4), np.array([4], np.float32)]
    kept = [argument.copy() for argument in given]
    generalized_advantages(*given, 0.9)
    for argument, copy in zip(given, kept, strict=True):
        np.testing.assert_array_equal(argument, copy)


def test_advantages_need_a_value_for_each_reward() -> None:
    with pytest.raises(ValueError, match=r"v_t must have the shape of r_t, \(2, 1\), not \(3, 1\)"):
        generalized_advantages(column(1, 2), column(1, 1), column(1, 2, 3), np.ones(1, np.float32), 1.0)
    with pytest.raises(ValueError, match=r"must have shapes \[T, N\], \[T, N\] and \[N\]"):
        generalized_advantages(column(1, 2), column(1, 1), column(1, 2), np.ones(2, np.float32), 1.0)


def test_fortran_order_gives_the_same_advantages() -> None:
    rewards, discounts, values = np.random.default_rng(3).random((3, 4, 2), np.float32)
    bootstrap = np.ones(2, np.float32)
    expected = generalized_advantages(rewards, discounts, values, bootstrap, 0.9)
    turned = (np.asfortranarray(array) for array in (rewards, discounts, values))
    np.testing.assert_array_equal(generalized_advantages(*turned, bootstrap, 0.9), expected)
