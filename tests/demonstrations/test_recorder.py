from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.demonstrations.columns import StepColumns
from relaax.demonstrations.recorder import EpisodeRecorder
from relaax.rlx import Autoreset, Init, Reset, Step
from support.recorded_session import RecordedSession, obs

pytestmark = pytest.mark.checks(
    "relaax/demonstrations", "relaax/server/rlx_server/workers/session.py", "tests/support/recorded_session.py"
)


def recording(*autoreset: Autoreset, **options: Any) -> tuple[RecordedSession, list[StepColumns]]:
    """Return a session of two environments whose agent acts 1, 2, 3, ..., and the episodes that are recorded."""
    found: list[StepColumns] = []
    environments = options.get("environments", 2)
    session = RecordedSession(*autoreset, recorder=EpisodeRecorder(environments, found.append), **options)
    return session, found


def mask(*flags: int) -> Any:
    return np.array(flags, np.bool_)


def rows(episode: StepColumns) -> list[tuple[float, int, bool, float]]:
    """Return observation, action, whether the client chose it, and reward of each step."""
    return list(
        zip(
            episode.observations[0][:, 0].tolist(),
            episode.actions[0].tolist(),
            episode.chosen.tolist(),
            episode.rewards.tolist(),
            strict=True,
        )
    )


def rewards(*numbers: float) -> Any:
    return np.array(numbers, np.float64)


def test_same_step_episodes_have_their_final_observation() -> None:
    recorded, found = recording(Autoreset.SAME_STEP)
    session = recorded.session
    session.init(Init(obs(0, 10)))
    session.step(Step(rewards(1, 5), obs(1, 11)))
    ended = Step(rewards(2, 6), obs(100, 12), truncated=mask(1, 0), final_observation=obs(2, 0))
    session.step(ended)
    session.step(Step(rewards(3, 7), obs(101, 110), terminated=mask(0, 1)))
    assert [rows(each) for each in found] == [
        [(0, 1, False, 1), (1, 2, False, 2)],
        [(10, 1, False, 5), (11, 2, False, 6), (12, 3, False, 7)],
    ]
    assert [(each.terminated, each.truncated) for each in found] == [(False, True), (True, False)]
    assert found[0].final is not None
    assert found[0].final[0].tolist() == [[2.0]]
    assert found[1].final is None


def test_next_step_episodes_leave_void_steps_out() -> None:
    recorded, found = recording(Autoreset.NEXT_STEP, environments=1)
    session = recorded.session
    session.init(Init(obs(0)))
    session.step(Step(rewards(1), obs(1), truncated=mask(1)))
    session.step(Step(rewards(0), obs(50), first=mask(1)))
    session.step(Step(rewards(2), obs(51), terminated=mask(1)))
    assert [rows(each) for each in found] == [[(0, 1, False, 1)], [(50, 3, False, 2)]]
    assert found[0].final is not None
    assert found[0].final[0].tolist() == [[1.0]]


def test_chosen_actions_replace_the_agents() -> None:
    recorded, found = recording(Autoreset.SAME_STEP, chosen_actions=True)
    session = recorded.session
    session.init(Init(obs(0, 10)))
    chosen = {"chosen": mask(0, 1), "action": [np.array([0, 77])]}
    session.step(Step(rewards(1, 5), obs(1, 11), **chosen))
    session.reset(Reset(rewards(2, 6), chosen=mask(1, 0), action=[np.array([88, 0])]))
    assert [rows(each) for each in found] == [
        [(0, 1, False, 1), (1, 88, True, 2)],
        [(10, 77, True, 5), (11, 2, False, 6)],
    ]


def test_episodes_that_a_reset_ends_are_recorded_once() -> None:
    recorded, found = recording(Autoreset.DISABLED)
    session = recorded.session
    session.init(Init(obs(0, 10)))
    session.reset(Reset(rewards(1, 5), truncated=mask(0, 1), final_observation=obs(0, 11)))
    assert [rows(each) for each in found] == [[(0, 1, False, 1)], [(10, 1, False, 5)]]
    session.init(Init(obs(20, 30)))
    session.step(Step(rewards(2, 6), obs(21, 31)))
    session.reset(Reset(rewards(3, 7)))
    assert [rows(each) for each in found[2:]] == [
        [(20, 2, False, 2), (21, 3, False, 3)],
        [(30, 2, False, 6), (31, 3, False, 7)],
    ]


def test_partial_and_unfinished_episodes_are_left_out() -> None:
    recorded, found = recording(Autoreset.SAME_STEP)
    session = recorded.session
    session.init(Init(obs(2, 12), partial=mask(0, 1)))  # the client has lost its connection
    session.step(Step(rewards(3, 6), obs(3, 120), terminated=mask(0, 1)))
    session.step(Step(rewards(4, 7), obs(200, 13), terminated=mask(1, 0)))
    session.step(Step(rewards(4, 8), obs(201, 14), terminated=mask(0, 1)))
    assert [rows(each) for each in found] == [
        [(2, 1, False, 3), (3, 2, False, 4)],
        [(120, 2, False, 7), (13, 3, False, 8)],
    ]


def test_held_steps_belong_to_the_action_before_them() -> None:
    recorded, found = recording(Autoreset.SAME_STEP, out_of_step=True)
    session = recorded.session
    session.init(Init(obs(0, 10)))
    session.step(Step(rewards(1, 0), obs(1, 0), idle=mask(0, 1)))  # the second environment's action is in progress
    session.step(Step(rewards(2, 5), obs(2, 11)))
    session.step(Step(rewards(3, 6), obs(100, 110), terminated=mask(1, 1)))
    assert sorted(rows(each) for each in found) == [
        [(0, 1, False, 1), (1, 2, False, 2), (2, 3, False, 3)],
        [(10, 1, False, 5), (11, 3, False, 6)],
    ]
