"""Rollouts out of step, compared by environment with rollouts in step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from relaax.algorithm_base import StepResult
from relaax.algorithm_base.ragged import RaggedRollout
from relaax.algorithm_base.rollout import Batch, Rollout
from relaax.nn.distributions import Categorical
from relaax.nn.specification import NetworkSpec

GAMMA, T, N = 0.5, 3, 4
POLICY = Categorical(2)
SPEC = NetworkSpec(inputs=(1,), heads={**POLICY.heads, "value": 1}, dense=(), lstm=1)
MASKS = 2


def step(rewards: Sequence[float], **masks: Sequence[int]) -> StepResult:
    """`terminated`, `truncated`, `first` and `unwanted` are indices of environments."""
    n = len(rewards)
    names = ("terminated", "truncated", "first", "unwanted")
    flags = {name: np.isin(np.arange(n), masks.get(name, ())) for name in names}
    return StepResult(np.array(rewards, np.float64), [np.zeros((n, 1), np.float32)], **flags)


def act(rollout: RaggedRollout | Rollout, seen: Sequence[float], values: Sequence[float]) -> None:
    """Act: inputs, actions and states are the numbers of `seen`."""
    column = np.array(seen, np.float32)
    state = np.repeat(column[:, None], SPEC.state_size, axis=1)
    rollout.act(column[:, None], column.astype(np.int32), np.array(values, np.float32), state, column < 0)


def outcome(rollout: RaggedRollout, one: StepResult) -> None:
    rollout.outcome(one, one.rewards, GAMMA, None)


def test_opponents_reward_comes_with_the_next_own_step() -> None:
    """The example of RLX, section 8: player 0 acts on 10, its opponent on 20, then player 0 wins and both leave."""
    rollout = RaggedRollout(2, 2, SPEC, np.float32, POLICY)
    act(rollout, [10, 99], [1, 99])
    outcome(rollout, step([99, 99], first=[1], unwanted=[0]))
    act(rollout, [77, 20], [77, 2])
    outcome(rollout, step([0.25, 99], unwanted=[1]))
    act(rollout, [11, 77], [3, 77])
    outcome(rollout, step([1, -1], terminated=[0, 1], unwanted=[0, 1]))
    assert rollout.full
    act(rollout, [88, 88], [88, 88])
    batch = rollout.batch(None, 1.0)
    assert batch.inputs[..., 0].T.tolist() == [[10, 11], [20, 88]]
    assert batch.mask.T.tolist() == [[1, 1], [1, 0]]
    assert batch.targets.T.tolist() == [[0.25 + GAMMA, 1], [-1, 88]]
    assert batch.advantages.T.tolist() == [[0.25 + GAMMA - 1, 1 - 3], [-1 - 2, 0]]


def test_shorter_column_bootstraps_from_its_open_action() -> None:
    rollout = RaggedRollout(2, 2, SPEC, np.float32, POLICY)
    act(rollout, [10, 20], [1, 2])
    outcome(rollout, step([3, 4]))
    act(rollout, [11, 21], [5, 6])
    outcome(rollout, step([7, 99], unwanted=[1]))
    act(rollout, [12, 99], [8, 99])
    batch = rollout.batch(None, 1.0)
    assert batch.targets.T.tolist() == [[3 + GAMMA * (7 + GAMMA * 8), 7 + GAMMA * 8], [4 + GAMMA * 6, 6]]
    assert batch.mask.T.tolist() == [[1, 1], [1, 0]]


def test_open_action_begins_the_next_rollout() -> None:
    rollout = RaggedRollout(1, 2, SPEC, np.float32, POLICY)
    act(rollout, [10, 20], [1, 2])
    outcome(rollout, step([3, 99], unwanted=[1]))
    act(rollout, [11, 99], [4, 99])
    assert rollout.batch(None, 1.0).inputs[..., 0].tolist() == [[10]]
    assert rollout.newest()[:, 0].tolist() == [11, 20]
    rollout.begin_next(np.array([5, 6], np.float32), np.array([0.5, 0.25], np.float32))
    outcome(rollout, step([99, 7], unwanted=[0]))
    act(rollout, [99, 21], [99, 8])
    batch = rollout.batch(None, 1.0)
    assert (batch.inputs[..., 0].tolist(), batch.actions.tolist(), batch.state.tolist()) == ([[20]], [[20]], [[20, 20]])
    assert batch.targets.tolist() == [[7 + GAMMA * 8]]
    assert batch.advantages.tolist() == [[0.25 * (7 + GAMMA * 8 - 6)]]
    assert rollout.newest()[:, 0].tolist() == [11, 21]


def test_environment_without_a_step_is_not_in_the_batch() -> None:
    rollout = RaggedRollout(1, 3, SPEC, np.float32, POLICY)
    act(rollout, [1, 2, 3], [0, 0, 0])
    outcome(rollout, step([4, 99, 99], unwanted=[1], first=[2]))
    batch = rollout.batch(np.full(3, 8, np.float32), 1.0)
    assert batch.inputs.shape == (1, 1, 1)
    assert batch.targets.tolist() == [[4 + GAMMA * 8]]


@dataclass
class Row:
    """One step of an environment."""

    seen: np.ndarray
    action: int
    value: float
    state: np.ndarray
    restart: bool
    valid: np.ndarray
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: float = 0.0


class Column:
    """The steps of one environment since the last batch, and its open action."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.open: Row | None = None
        self.is_away = False
        self.weight = 1.0

    def expected(self, after: Row, gae_lambda: float) -> Batch:
        """Return the batch of a rollout in step of this environment. `after`: what follows its steps."""
        rollout = Rollout(len(self.rows), 1, SPEC, np.float32, POLICY, mask_size=MASKS)
        for row in self.rows:
            add_row(rollout, row)
            masks = {"terminated": [0] if row.terminated else [], "truncated": [0] if row.truncated else []}
            final = np.array([row.final], np.float32) if row.truncated else None
            rollout.outcome(step([row.reward], **masks), np.array([row.reward]), GAMMA, final)
        add_row(rollout, after)
        rollout.weights[:] = self.weight
        return rollout.batch(None, gae_lambda)


def add_row(rollout: Rollout, row: Row) -> None:
    restart, valid = np.array([row.restart]), row.valid[None]
    value = np.array([row.value], np.float32)
    rollout.act(row.seen[None], np.array([row.action]), value, row.state[None], restart, valid)


class Play:
    """Random steps of N environments out of step, given to a `RaggedRollout` and recorded by environment."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.columns = [Column() for _ in range(N)]
        self.rollout = RaggedRollout(T, N, SPEC, np.float32, POLICY, mask_size=MASKS)
        self.restart = np.ones(N, np.bool_)

    def act(self) -> None:
        rows = [self._row(bool(self.restart[i])) for i in range(N)]
        self.rollout.act(*(np.array([getattr(row, name) for row in rows]) for name in
                           ("seen", "action", "value", "state", "restart", "valid")))  # fmt: skip
        for column, row in zip(self.columns, rows, strict=True):
            if column.open is None:
                column.open = row
                column.weight = column.weight if column.rows else 1.0

    def step(self) -> None:
        """Complete the actions of some environments; the others are held, leave or come."""
        rewards, finals = self.rng.normal(size=N), self.rng.normal(size=N).astype(np.float32)
        masks: dict[str, list[int]] = {"terminated": [], "truncated": [], "first": [], "unwanted": []}
        for i, column in enumerate(self.columns):
            if self.rng.random() < 0.4:
                masks["unwanted"].append(i)
                rewards[i] = 1e9
            elif column.is_away:
                masks["first"].append(i)
                column.is_away, column.open = False, None
            else:
                self._complete(i, column, rewards[i], finals[i], masks)
        one = step(rewards.tolist(), **masks)
        self.rollout.outcome(one, one.rewards, GAMMA, finals if one.truncated.any() else None)
        self.restart = one.restart

    def renew(self) -> None:
        """Begin the next rollout with other values and weights of the open actions."""
        values, weights = self.rng.random((2, N)).astype(np.float32)
        self.rollout.begin_next(values, weights)
        for i, column in enumerate(self.columns):
            column.rows = []
            if column.open is not None:
                column.open.value, column.weight = values[i], float(weights[i])

    def check(self, expected: np.ndarray | None, gae_lambda: float) -> None:
        """Compare the batch with those of rollouts in step. `expected`: see `RaggedRollout.batch`."""
        batch = self.rollout.batch(expected, gae_lambda)
        ready = [i for i in range(N) if self.columns[i].rows]
        assert batch.mask.shape == (T, len(ready))
        for k, i in enumerate(ready):
            after = self.columns[i].open if expected is None else self._row(False)
            assert after is not None
            if expected is not None:
                after.value = expected[i]
            wanted = self.columns[i].expected(after, gae_lambda)
            count = len(self.columns[i].rows)
            assert batch.mask[:, k].tolist() == [1] * count + [0] * (T - count)
            for name in ("inputs", "actions", "advantages", "targets", "restart", "valid"):
                np.testing.assert_array_equal(getattr(batch, name)[:count, k], getattr(wanted, name)[:, 0], name)
            np.testing.assert_array_equal(batch.state[k], wanted.state[0])
            assert not batch.advantages[count:, k].any()

    def _complete(self, i: int, column: Column, reward: float, final: float, masks: dict[str, list[int]]) -> None:
        row = column.open
        assert row is not None
        row.reward, row.final = reward, final
        row.terminated = bool(self.rng.random() < 0.15)
        row.truncated = bool(self.rng.random() < 0.15)
        column.rows.append(row)
        column.open = None
        if row.terminated or row.truncated:
            for name in ("terminated", "truncated"):
                if getattr(row, name):
                    masks[name].append(i)
            if self.rng.random() < 0.5:
                masks["unwanted"].append(i)
                column.is_away = True

    def _row(self, restart: bool) -> Row:
        state = np.zeros(SPEC.state_size) if restart else self.rng.normal(size=SPEC.state_size)
        valid = np.array([True, bool(self.rng.integers(2))])
        return Row(
            self.rng.normal(size=1).astype(np.float32), int(self.rng.integers(2)), np.float32(self.rng.normal()),
            state.astype(np.float32), restart, valid,
        )  # fmt: skip


@pytest.mark.parametrize("overlap", [False, True])
def test_batches_equal_those_of_each_environment_in_step(overlap: bool) -> None:
    play, batches = Play(seed=int(overlap)), 0
    play.act()
    for _ in range(400):
        play.step()
        if overlap:
            play.act()
        if play.rollout.full:
            play.check(None if overlap else play.rng.random(N).astype(np.float32), 0.7)
            play.renew()
            batches += 1
        if not overlap:
            play.act()
    assert batches > 50


def test_rollout_without_idle_environments_equals_one_in_step() -> None:
    rng, compared = np.random.default_rng(0), 0
    ragged = RaggedRollout(T, N, SPEC, np.float32, POLICY)
    plain = Rollout(T, N, SPEC, np.float32, POLICY)
    for t in range(2 * T):
        values, rewards = rng.normal(size=(2, N)).astype(np.float32)
        one = step(rewards.tolist(), terminated=[1] if t == 1 else [], truncated=[2] if t == 4 else [])
        for rollout in (ragged, plain):
            act(rollout, values.tolist(), values.tolist())
            rollout.outcome(one, one.rewards, GAMMA, values)
        if plain.full:
            mine, wanted = (rollout.batch(np.arange(N, dtype=np.float32), 0.9) for rollout in (ragged, plain))
            for name in ("inputs", "actions", "advantages", "targets", "mask", "state", "restart"):
                np.testing.assert_array_equal(getattr(mine, name), getattr(wanted, name), name)
            compared += 1
    assert compared == 2
