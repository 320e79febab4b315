from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from algorithms.da3c.rollout import Rollout
from relaax.algorithm_base import Step

GAMMA = 0.5
EVERYWHERE_8 = np.array([8.0, 8.0], np.float32)


def step(rewards: Sequence[float], **masks: Sequence[int]) -> Step:
    """`terminated`, `truncated` and `first` are indices of environments."""
    n = len(rewards)
    flags = {name: np.isin(np.arange(n), masks.get(name, ())) for name in ("terminated", "truncated", "first")}
    return Step(np.array(rewards, np.float64), [np.zeros((n, 1), np.float32)], **flags)


def rollout(length: int = 2) -> Rollout:
    return Rollout(length, 2, (1,), np.float32)


def play(steps: Sequence[Step], clip: float | None = None, finals: Sequence[np.ndarray | None] = ()) -> Rollout:
    made = rollout(len(steps))
    for index, one in enumerate(steps):
        assert not made.full
        made.act(np.full((2, 1), index, np.float32), np.array([index, 10 + index], np.int32))
        made.outcome(one, GAMMA, clip, finals[index] if finals else None)
    assert made.full
    return made


def test_returns_by_hand() -> None:
    made = play([step([1, 2]), step([3, 4])])
    # R1 = [3, 4] + 8/2 = [7, 8];  R0 = [1, 2] + [7, 8]/2 = [4.5, 6].
    assert made.returns(EVERYWHERE_8).tolist() == [[4.5, 6.0], [7.0, 8.0]]
    assert made.env_steps == 4
    assert made.mask.tolist() == [[1, 1], [1, 1]]


def test_what_was_seen_and_done_is_kept_in_order() -> None:
    made = play([step([0, 0]), step([0, 0])])
    assert made.inputs[..., 0].tolist() == [[0, 0], [1, 1]]
    assert made.actions.tolist() == [[0, 10], [1, 11]]


def test_terminated_is_worth_its_reward() -> None:
    made = play([step([1, 2], terminated=[0]), step([3, 4], terminated=[1])])
    # left: R0 = 1, R1 = 3 + 8/2;  right: R1 = 4, R0 = 2 + 4/2.
    assert made.returns(EVERYWHERE_8).tolist() == [[1.0, 4.0], [7.0, 4.0]]


def test_truncated_adds_the_value_of_the_final_observation_once() -> None:
    finals = [np.array([100, 20], np.float32), None]
    made = play([step([1, 2], truncated=[1]), step([3, 4])], finals=finals)
    # right: R0 = 2 + 20/2, whatever comes later;  left goes on: R0 = 1 + (3 + 8/2)/2.
    assert made.returns(EVERYWHERE_8).tolist() == [[4.5, 12.0], [7.0, 8.0]]


def test_truncated_at_the_last_step_takes_its_own_value_not_the_bootstrap() -> None:
    finals = [None, np.array([20, 100], np.float32)]
    made = play([step([1, 2]), step([3, 4], truncated=[0])], finals=finals)
    # left: R1 = 3 + 20/2 = 13, R0 = 1 + 13/2.
    assert made.returns(EVERYWHERE_8).tolist() == [[7.5, 6.0], [13.0, 8.0]]


def test_terminated_and_truncated_is_terminated() -> None:
    made = play([step([1, 2], terminated=[0], truncated=[0])], finals=[EVERYWHERE_8])
    assert made.returns(EVERYWHERE_8).tolist() == [[1.0, 6.0]]


def test_a_void_transition_is_masked_and_worth_nothing() -> None:
    made = play([step([1, 2], terminated=[0]), step([1e38, 4], first=[0])])
    # right: R1 = 4 + 8/2 = 8, R0 = 2 + 8/2.
    assert made.returns(EVERYWHERE_8).tolist() == [[1.0, 6.0], [0.0, 8.0]]
    assert made.mask.tolist() == [[1, 1], [0, 1]]
    assert made.env_steps == 3


@pytest.mark.parametrize(("clip", "expected"), [(None, [7.0, -9.0]), (2.0, [2.0, -2.0]), (8.0, [7.0, -8.0])])
def test_rewards_are_clipped_on_both_sides(clip: float | None, expected: list[float]) -> None:
    made = play([step([7, -9])], clip)
    assert made.returns(np.zeros(2, np.float32)).tolist() == [expected]


def test_values_are_not_clipped() -> None:
    made = play([step([7, -9], truncated=[0])], 1.0, [np.array([40, 40], np.float32)])
    assert made.returns(EVERYWHERE_8).tolist() == [[21.0, 3.0]]  # 1 + 40/2, -1 + 8/2


def test_a_rollout_is_filled_anew() -> None:
    made = play([step([1, 2], terminated=[0]), step([3, 4], first=[0])])
    made.steps = 0
    assert (made.full, made.env_steps) == (False, 0)
    for rewards in ([5, 6], [7, 8]):
        made.act(np.zeros((2, 1), np.float32), np.zeros(2, np.int32))
        made.outcome(step(rewards), GAMMA, None, None)
    # R1 = [7, 8] + 4 = [11, 12];  R0 = [5, 6] + [11, 12]/2.
    assert made.returns(EVERYWHERE_8).tolist() == [[10.5, 12.0], [11.0, 12.0]]
    assert made.env_steps == 4
