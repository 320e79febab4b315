from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaax.algorithm_base import StepResult
from relaax.algorithm_base.rollout import Batch, Rollout
from relaax.nn.distributions import Categorical
from relaax.nn.specification import NetworkSpec

GAMMA = 0.5
EVERYWHERE_8 = np.array([8.0, 8.0], np.float32)


def step(rewards: Sequence[float], **masks: Sequence[int]) -> StepResult:
    """`terminated`, `truncated` and `first` are indices of environments."""
    n = len(rewards)
    flags = {name: np.isin(np.arange(n), masks.get(name, ())) for name in ("terminated", "truncated", "first")}
    return StepResult(np.array(rewards, np.float64), [np.zeros((n, 1), np.float32)], **flags)


def rollout(length: int = 2) -> Rollout:
    policy = Categorical(2)
    spec = NetworkSpec(inputs=(1,), heads={**policy.heads, "value": 1}, dense=(), lstm=1)
    return Rollout(length, 2, spec, np.float32, policy)


def fill(
    made: Rollout, steps: Sequence[StepResult], finals: Sequence[np.ndarray | None] = (), value: float = 0.0
) -> None:
    for index, one in enumerate(steps):
        assert not made.full
        seen, done = np.full((2, 1), index, np.float32), np.array([index, 10 + index], np.int32)
        values = np.array([value + index, value - index], np.float32)
        made.act(seen, done, values, np.full((2, 2), 5 + index, np.float32), np.array([index == 0, index == 1]))
        made.outcome(one, one.rewards, GAMMA, finals[index] if finals else None)
    assert made.full


def learned(made: Rollout, gae_lambda: float = 1.0) -> Batch:
    return made.batch(EVERYWHERE_8, gae_lambda)


def play(steps: Sequence[StepResult], finals: Sequence[np.ndarray | None] = ()) -> Batch:
    made = rollout(len(steps))
    fill(made, steps, finals)
    return learned(made)


def test_returns_by_hand() -> None:
    made = play([step([1, 2]), step([3, 4])])
    # R1 = [3, 4] + 8/2 = [7, 8];  R0 = [1, 2] + [7, 8]/2 = [4.5, 6].
    assert made.targets.tolist() == [[4.5, 6.0], [7.0, 8.0]]
    assert made.mask.tolist() == [[1, 1], [1, 1]]


def test_observations_and_actions_keep_their_order() -> None:
    made = play([step([0, 0]), step([0, 0])])
    assert made.inputs[..., 0].tolist() == [[0, 0], [1, 1]]
    assert made.actions.tolist() == [[0, 10], [1, 11]]


def test_target_of_a_terminated_step_is_its_reward() -> None:
    made = play([step([1, 2], terminated=[0]), step([3, 4], terminated=[1])])
    # left: R0 = 1, R1 = 3 + 8/2;  right: R1 = 4, R0 = 2 + 4/2.
    assert made.targets.tolist() == [[1.0, 4.0], [7.0, 4.0]]


def test_truncated_step_adds_value_of_final_observation() -> None:
    finals = [np.array([100, 20], np.float32), None]
    made = play([step([1, 2], truncated=[1]), step([3, 4])], finals)
    # right: R0 = 2 + 20/2, without later rewards;  left does not end: R0 = 1 + (3 + 8/2)/2.
    assert made.targets.tolist() == [[4.5, 12.0], [7.0, 8.0]]


def test_truncated_last_step_ignores_the_bootstrap() -> None:
    finals = [None, np.array([20, 100], np.float32)]
    made = play([step([1, 2]), step([3, 4], truncated=[0])], finals)
    # left: R1 = 3 + 20/2 = 13, R0 = 1 + 13/2.
    assert made.targets.tolist() == [[7.5, 6.0], [13.0, 8.0]]


def test_terminated_takes_precedence_over_truncated() -> None:
    made = play([step([1, 2], terminated=[0], truncated=[0])], finals=[EVERYWHERE_8])
    assert made.targets.tolist() == [[1.0, 6.0]]


def test_void_transition_is_masked_with_target_zero() -> None:
    made = play([step([1, 2], terminated=[0]), step([1e38, 4], first=[0])])
    # right: R1 = 4 + 8/2 = 8, R0 = 2 + 8/2.
    assert made.targets.tolist() == [[1.0, 6.0], [0.0, 8.0]]
    assert made.mask.tolist() == [[1, 1], [0, 1]]


def test_advantages_are_targets_minus_values() -> None:
    made = rollout()
    fill(made, [step([1, 2]), step([3, 4])], value=2.0)  # values [2, 2], then [3, 1]
    batch = learned(made)
    assert batch.targets.tolist() == [[4.5, 6.0], [7.0, 8.0]]
    assert batch.advantages.tolist() == [[2.5, 4.0], [4.0, 7.0]]


def test_lambda_below_1_uses_the_values() -> None:
    steps = [step([1, 2], terminated=[1]), step([3, 4])]
    made = rollout()
    fill(made, steps, value=2.0)
    half = learned(made, 0.5)
    # Left: A1 = 3 + 8/2 - 3 = 4, A0 = (1 + 3/2 - 2) + 0.5 * 0.5 * 4 = 1.5.  Right: A1 = 4 + 8/2 - 1 = 7, A0 = 2 - 2.
    assert half.advantages.tolist() == [[1.5, 0.0], [4.0, 7.0]]
    assert half.targets.tolist() == [[3.5, 2.0], [7.0, 8.0]]  # the advantages plus the values [2, 2], [3, 1]
    fill(made, steps, value=2.0)
    assert learned(made, 0.0).advantages.tolist() == [[0.5, 0.0], [4.0, 7.0]]


def test_batch_has_the_state_before_its_first_step() -> None:
    batch = play([step([0, 0]), step([0, 0], terminated=[1])])
    assert batch.state.tolist() == [[5.0, 5.0], [5.0, 5.0]]
    assert batch.restart.tolist() == [[True, False], [False, True]]


def test_rollout_can_be_filled_again() -> None:
    made = rollout()
    fill(made, [step([1, 2], terminated=[0]), step([3, 4], first=[0])])
    learned(made)
    assert not made.full
    fill(made, [step([5, 6]), step([7, 8])])
    # R1 = [7, 8] + 4 = [11, 12];  R0 = [5, 6] + [11, 12]/2.
    batch = learned(made)
    assert batch.targets.tolist() == [[10.5, 12.0], [11.0, 12.0]]
    assert batch.mask.all()


def act(made: Rollout, seen: float, done: int, value: float) -> None:
    made.act(
        np.full((2, 1), seen, np.float32),
        np.full(2, done, np.int32),
        np.full(2, value, np.float32),
        np.full((2, 2), seen, np.float32),
        np.array([False, True]),
    )


def test_row_acted_on_early_begins_the_next_rollout() -> None:
    made = rollout(1)
    act(made, 1, 10, 0)
    assert made.row == 0
    made.outcome(step([1, 2]), np.array([1.0, 2.0]), GAMMA, None)
    assert made.row is None
    act(made, 2, 20, 8)
    batch = made.batch(None, 1.0)
    assert batch.targets.tolist() == [[5.0, 6.0]]  # [1, 2] + 8/2
    assert batch.actions.tolist() == [[10, 10]]
    assert batch.state.tolist() == [[1, 1], [1, 1]]
    assert made.row == 0
    assert made.newest().tolist() == [[2], [2]]
    made.begin_next(np.array([3, 4], np.float32), np.array([1, 0.5], np.float32))
    assert not made.full
    made.outcome(step([1, 2]), np.array([1.0, 2.0]), GAMMA, None)
    batch = made.batch(EVERYWHERE_8, 1.0)
    assert batch.inputs[..., 0].tolist() == [[2, 2]]
    assert batch.actions.tolist() == [[20, 20]]
    assert batch.state.tolist() == [[2, 2], [2, 2]]
    assert batch.restart.tolist() == [[False, True]]
    assert batch.targets.tolist() == [[5.0, 6.0]]
    assert batch.advantages.tolist() == [[2.0, 1.0]]  # 5 - 3, and (6 - 4) times its importance weight 0.5


def test_clear_discards_the_importance_weight() -> None:
    made = rollout(1)
    act(made, 1, 10, 0)
    made.outcome(step([1, 2]), np.array([1.0, 2.0]), GAMMA, None)
    act(made, 2, 20, 8)
    made.batch(None, 1.0)
    made.begin_next(np.zeros(2, np.float32), np.zeros(2, np.float32))
    made.clear()
    act(made, 3, 30, 0)
    made.outcome(step([1, 2]), np.array([1.0, 2.0]), GAMMA, None)
    assert made.batch(EVERYWHERE_8, 1.0).advantages.tolist() == [[5.0, 6.0]]


def test_cleared_steps_are_not_in_the_batch() -> None:
    made = rollout()
    made.act(np.zeros((2, 1), np.float32), np.zeros(2, np.int32), EVERYWHERE_8, np.zeros((2, 2)), np.ones(2, np.bool_))
    made.outcome(step([100, 100]), np.array([100.0, 100.0]), GAMMA, None)
    made.clear()
    fill(made, [step([1, 2]), step([3, 4])])
    assert learned(made).targets.tolist() == [[4.5, 6.0], [7.0, 8.0]]
