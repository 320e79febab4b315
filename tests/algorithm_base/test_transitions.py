"""Transitions of all kinds of episodes, compared with an oracle that processes whole episodes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, Space, StepResult
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.algorithm_base.testing import RandomEnvironments
from relaax.algorithm_base.transitions import (
    LARGEST_INSERT,
    NEXT_VALID,
    ObservationLayout,
    Transitions,
    priorities_of,
    transition_table,
)
from relaax.replay.interfaces import Insertion, ReplayWriter
from relaax.replay.local import LocalReplay
from relaax.replay.spec import TableDeclaration
from support.table_copies import state_of

GAMMA = 0.9
ACTIONS = 3
N = 5
VECTOR = Dict({"place": Box(-1, 1, (2,)), "door": Discrete(3)})
GREY = Box(0, 255, (4, 3), "uint8")
COLOUR = Box(0, 255, (4, 3, 2), "uint8")
PLANES = Box(0, 1, (5, 4, 2), "bool")


@dataclass
class Moment:
    """One step of an environment: inputs, action, values and reward."""

    inputs: np.ndarray
    action: int
    values: np.ndarray
    reward: float = 0.0


@dataclass
class Oracle:
    """The expected transitions of one environment: (observation, action, reward, discount, next, priority)."""

    steps: int
    found: list[tuple[Any, ...]] = field(default_factory=list)
    episode: list[Moment] = field(default_factory=list)

    def end(self, following: np.ndarray | None, value: float) -> None:
        """Complete all pending transitions. `following` is None if the episode terminated."""
        while self.episode:
            self.complete(following, value)

    def complete(self, following: np.ndarray | None, value: float) -> None:
        first, length = self.episode[0], len(self.episode)
        total = sum(GAMMA**k * moment.reward for k, moment in enumerate(self.episode))
        discount = 0.0 if following is None else GAMMA**length
        priority = abs(total + discount * value - first.values[first.action]) + 0.5
        self.found.append((first.inputs, first.action, total, discount, following, priority))
        self.episode.pop(0)


class Values:
    """Action values that depend on the inputs."""

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        sums = inputs.reshape(len(inputs), -1).astype(np.float64)
        weights = np.cos(np.arange(sums.shape[1] * ACTIONS)).reshape(-1, ACTIONS)
        return (sums @ weights / 255).astype(np.float32)


def valid_in(inputs: np.ndarray) -> np.ndarray:
    """Return masks that depend on the inputs, bool [B, ACTIONS]: one or two valid actions."""
    sums = np.abs(1e3 * inputs.reshape(len(inputs), -1).astype(np.float64)).sum(axis=1).astype(np.int64)
    first, second = sums % ACTIONS, sums // 7 % ACTIONS
    valid: np.ndarray = (np.arange(ACTIONS) == first[:, None]) | (np.arange(ACTIONS) == second[:, None])
    return valid


def play_episodes(
    space: Space,
    history: int,
    steps: int,
    groups: int,
    moments: int,
    seed: int,
    masked: bool = False,
    idle: float = 0.0,
) -> tuple[Any, ...]:
    """Play random episodes with some resets; return the replay memory, the layout and the oracles.

    `idle`: how often an environment is idle.
    """
    rng = np.random.default_rng(seed)
    layout = ObservationLayout(space, history)
    table = transition_table(layout, 20_000, 1.0, mask_size=ACTIONS if masked else 0)
    replay = LocalReplay(TableDeclaration(table), N, groups=groups)
    transitions = Transitions(replay.writers, layout, steps=steps, gamma=GAMMA, priority_offset=0.5, insert_size=7)
    encoder, values = ObservationEncoder(space, N, history), Values()
    envs = RandomEnvironments(
        space,
        Discrete(ACTIONS),
        N,
        next_step=[True, False, True, False, False],
        end_probability=0.15,
        idle_probability=idle,
        seed=seed,
    )
    oracles = [Oracle(steps) for _ in range(N)]
    inputs = np.zeros(0)

    def best(inputs: np.ndarray) -> np.ndarray:
        worth: np.ndarray = values(inputs)
        return (np.where(valid_in(inputs), worth, -np.inf) if masked else worth).max(axis=1)

    def act(restart: np.ndarray, held: np.ndarray | None = None) -> list[np.ndarray]:
        actions, worth = rng.integers(0, ACTIONS, N), values(inputs)
        for i, oracle in enumerate(oracles):
            if held is not None and held[i]:
                continue
            if len(oracle.episode) == steps:
                oracle.complete(inputs[i].copy(), float(best(inputs)[i]))
            oracle.episode.append(Moment(inputs[i].copy(), int(actions[i]), worth[i]))
        values_of_both = worth[np.arange(N), actions], best(inputs)
        transitions.act(inputs, restart, actions, values_of_both, valid_in(inputs) if masked else None, held)
        transitions.insert()
        return [actions]

    inputs = encoder.reset(envs.reset())
    actions = act(np.ones(N, np.bool_))
    for number in range(moments):
        if number in (0, 1, 40, 41, moments // 2):
            transitions.clear()
            for oracle in oracles:
                oracle.episode.clear()
            inputs = encoder.reset(envs.reset())
            actions = act(np.ones(N, np.bool_))
        step = both_ends(envs.step(actions), number)
        cut_off = step.cut_off()
        final = None if cut_off is None else encoder.peek(cut_off)
        final_values, final_valid = (None, None) if final is None else (best(final), valid_in(final))
        transitions.outcome(step, step.rewards, final, final_values, 1.0, final_valid if masked else None)
        for i, oracle in enumerate(oracles):
            if step.held is not None and step.held[i]:
                continue
            if step.first[i]:
                oracle.episode.clear()
                continue
            oracle.episode[-1].reward = float(step.rewards[i])
            if step.terminated[i]:
                oracle.end(None, 0.0)
            elif step.truncated[i]:
                assert final is not None
                oracle.end(final[i].copy(), float(best(final)[i]))
        void = step.unwanted if idle else None
        pushed = encoder.push(step.observations, step.restart, void)
        inputs = pushed if void is None else np.where(void.reshape(-1, *[1] * (pushed.ndim - 1)), inputs, pushed)
        actions = act(step.restart, step.held)
    return replay, layout, oracles


def both_ends(step: StepResult, number: int) -> StepResult:
    """Return the step with truncated episodes also terminated, if `number` is a multiple of 3."""
    if number % 3 or not step.truncated.any():
        return step
    return StepResult(
        step.rewards,
        step.observations,
        step.terminated | step.truncated,
        step.truncated,
        step.first,
        step.final_observations,
        step.unwanted,
    )


@pytest.mark.parametrize(("steps", "groups"), [(1, 1), (5, 2)])
@pytest.mark.parametrize(
    ("space", "history", "masked"),
    [(VECTOR, 4, False), (VECTOR, 4, True), (GREY, 4, False), (GREY, 4, True), (COLOUR, 3, False), (PLANES, 1, False)],
)
def test_transitions_match_those_of_whole_episodes(
    space: Space, history: int, masked: bool, steps: int, groups: int
) -> None:
    check_episodes(space, history, steps, groups, masked=masked)


@pytest.mark.parametrize(("steps", "groups"), [(1, 2), (3, 1)])
@pytest.mark.parametrize(("space", "history", "masked"), [(VECTOR, 4, True), (GREY, 4, False), (PLANES, 1, False)])
def test_transitions_out_of_step_match_whole_episodes(
    space: Space, history: int, masked: bool, steps: int, groups: int
) -> None:
    check_episodes(space, history, steps, groups, masked=masked, idle=0.5)


def check_episodes(
    space: Space, history: int, steps: int, groups: int, masked: bool = False, idle: float = 0.0
) -> None:
    """Compare the transitions of random episodes with the expected ones. `idle`: how often environments are idle."""
    moments = 700 if idle else 300
    replay, layout, oracles = play_episodes(space, history, steps, groups, moments, steps, masked, idle)
    wanted = [transition for oracle in oracles for transition in oracle.found]
    state = state_of(replay.table, 1 << 20)
    count = replay.table.size
    assert len(wanted) - 2 * 7 - N * steps <= count <= len(wanted), "only pending transitions may be missing"
    assert sum(discount == 0 for *_, discount, _, _ in wanted) > 50
    assert len({round(discount, 6) for *_, discount, _, _ in wanted}) == steps + 1, "discounts of all lengths, and 0"

    by_observation = {key(transition[0]): transition for transition in wanted}
    assert len(by_observation) == len(wanted)
    sampled = replay.sample(20 * count, timeout=0.0)
    assert sampled is not None
    keys, index = np.unique(sampled.keys, return_index=True)
    assert len(keys) > 0.9 * count
    columns = {name: column[index] for name, column in sampled.columns.items()}
    before, after = layout.to_inputs(columns["observation"]), layout.to_inputs(columns["next_observation"])
    priorities = dict(zip(state["keys"].tolist(), state["priorities"].tolist(), strict=True))
    found = [by_observation.pop(key(observation)) for observation in before]
    _, actions, rewards, discounts, following, found_priorities = zip(*found, strict=True)
    np.testing.assert_array_equal(columns["action"], actions)
    np.testing.assert_allclose(columns["reward"], rewards, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(columns["discount"], discounts, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose([priorities[number] for number in keys.tolist()], found_priorities, rtol=1e-4)
    go_on = [row for row, observation in enumerate(following) if observation is not None]
    np.testing.assert_array_equal(after[go_on], np.stack([following[row] for row in go_on]))
    if masked:
        np.testing.assert_array_equal(columns[NEXT_VALID][go_on], valid_in(after[go_on]))


def key(observation: np.ndarray) -> bytes:
    assert observation.dtype in (np.float32, np.uint8)
    return observation.tobytes()


def test_each_frame_is_stored_once() -> None:
    replay, _, oracles = play_episodes(GREY, 4, 3, 2, 300, seed=1)
    transitions = sum(len(oracle.found) for oracle in oracles)
    assert replay.table.frames < 1.4 * transitions, (
        "one frame per transition, and one at each end of episodes of about six steps"
    )


class Recorder(ReplayWriter):
    """A writer that keeps its insertions."""

    def __init__(self, environments: int) -> None:
        self.environments = np.arange(environments)
        self.insertions: list[Insertion] = []

    def insert(self, insertion: Insertion) -> None:
        self.insertions.append(insertion)


def test_insertions_refer_only_to_their_own_frames() -> None:
    writer = Recorder(2)
    layout = ObservationLayout(GREY, 4)
    transitions = Transitions([writer], layout, steps=3, gamma=GAMMA, insert_size=10)
    encoder, envs = ObservationEncoder(GREY, 2, 4), RandomEnvironments(GREY, Discrete(2), 2, seed=3)
    restart = np.ones(2, np.bool_)
    inputs = encoder.reset(envs.reset())
    for number in range(200):
        if number == 90:
            for _ in range(30):  # a client that resets repeatedly
                transitions.clear()
                inputs, restart = encoder.reset(envs.reset()), np.ones(2, np.bool_)
                transitions.act(inputs, restart, np.zeros(2, np.int64))
        else:
            transitions.act(inputs, restart, np.zeros(2, np.int64))
        step = envs.step([np.zeros(2, np.int64)])
        cut_off = step.cut_off()
        transitions.insert()
        transitions.outcome(step, step.rewards, None if cut_off is None else encoder.peek(cut_off), None)
        inputs, restart = encoder.push(step.observations, step.restart), step.restart
    assert len(writer.insertions) > 20
    for before, insertion in zip([None, *writer.insertions], writer.insertions, strict=False):
        frames = insertion.frames
        assert frames is not None
        assert insertion.priorities is None
        assert len(frames) < 60
        named = np.concatenate([insertion.columns["observation"], insertion.columns["next_observation"]])
        assert named.min() >= insertion.first_frame
        assert named.max() < insertion.first_frame + len(frames)
        if before is not None:
            assert before.first_frame <= insertion.first_frame
            shared = before.first_frame + len(before.frames) - insertion.first_frame  # type: ignore[arg-type]
            if shared > 0:
                np.testing.assert_array_equal(before.frames[-shared:], frames[:shared])  # type: ignore[index]


def test_long_wait_keeps_few_frames() -> None:
    """Environment 0 waits for long, twice. Its transitions stay whole, and each insertion has few frames."""
    writer, layout = Recorder(2), ObservationLayout(GREY, 4)
    transitions = Transitions([writer], layout, steps=3, gamma=GAMMA, insert_size=10)
    encoder, envs = ObservationEncoder(GREY, 2, 4), RandomEnvironments(GREY, Discrete(2), 2, end_probability=0.0)
    held = np.array([True, False])
    inputs, restart, own = encoder.reset(envs.reset()), np.ones(2, np.bool_), []
    for number in range(1300):
        waits = 10 <= number < 600 or 605 <= number < 1200
        if not waits:
            own.append(inputs[0].copy())
        transitions.act(inputs, restart, np.zeros(2, np.int64), None, None, held if waits else None)
        transitions.insert()
        step = envs.step([np.zeros(2, np.int64)])
        if 10 <= number + 1 < 600 or 605 <= number + 1 < 1200:
            step = replace(step, unwanted=held)
        transitions.outcome(step, step.rewards, None, None)
        inputs, restart = encoder.push(step.observations, step.restart, step.held), step.restart
    assert len(own) > 100
    stored = []
    for insertion in writer.insertions:
        assert insertion.frames is not None
        assert len(insertion.frames) < 200
        for numbers in insertion.columns["observation"]:
            stack = insertion.frames[numbers - insertion.first_frame]
            stored.append(np.moveaxis(stack[..., 0], 0, -1))
    found = {key(each) for each in stored}
    assert [t for t, each in enumerate(own[:-10]) if key(each) not in found] == []
    for before, after in zip(writer.insertions, writer.insertions[1:], strict=False):
        assert before.first_frame <= after.first_frame


def test_infinite_and_nan_errors_give_finite_priorities() -> None:
    errors = np.array([-2, 0, np.inf, -np.inf, np.nan], np.float32)
    assert priorities_of(errors, 0.5).tolist() == [2.5, 0.5, 1e30 + 0.5, 1e30 + 0.5, 0.5]


def test_insertions_of_many_environments_are_divided() -> None:
    """260 environments with images: each step completes 260 transitions, in insertions with shared frames."""
    count, layout = 260, ObservationLayout(GREY, 2)
    table = transition_table(layout, 5_000, None)
    replay = LocalReplay(TableDeclaration(table, samples_per_insert=1, error_buffer=2 * LARGEST_INSERT), count)
    inserted: list[int] = []
    (writer,) = replay.writers
    insert = writer.insert

    def record_and_insert(insertion: Insertion) -> None:
        inserted.append(len(insertion.columns["reward"]))
        replay.sample(inserted[-1], 0.0)  # the limiter would refuse larger insertions
        insert(insertion)

    writer.insert = record_and_insert  # type: ignore[method-assign]
    transitions = Transitions(replay.writers, layout, steps=1, gamma=GAMMA)
    encoder = ObservationEncoder(GREY, count, 2)
    envs = RandomEnvironments(GREY, Discrete(2), count, end_probability=0.1, seed=5)
    inputs, restart, acted, held = encoder.reset(envs.reset()), np.ones(count, np.bool_), 0, []
    for _ in range(6):
        transitions.act(inputs, restart, np.zeros(count, np.int64))
        transitions.insert()
        held.append(inputs.copy())
        step = envs.step([np.zeros(count, np.int64)])
        acted += step.env_steps
        cut_off = step.cut_off()
        transitions.outcome(step, step.rewards, None if cut_off is None else encoder.peek(cut_off), None)
        inputs, restart = encoder.push(step.observations, step.restart), step.restart
    transitions.act(inputs, restart, np.zeros(count, np.int64))
    transitions.insert()
    assert sum(inserted) == replay.table.size == acted
    assert max(inserted) == LARGEST_INSERT
    sampled = replay.sample(LARGEST_INSERT, 0.0)
    assert sampled is not None
    seen = {stack.tobytes() for stack in np.concatenate(held)}
    assert all(stack.tobytes() in seen for stack in layout.to_inputs(sampled.columns["observation"]))
