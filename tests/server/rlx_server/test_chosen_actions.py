"""Tests of a session whose client chooses actions."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base import Leaves
from relaax.rlx import Autoreset, Init, Mode, Reset, Step
from support.recorded_session import RecordedSession, mask, obs, rewards

SAME, NEXT = Autoreset.SAME_STEP, Autoreset.NEXT_STEP


def recorded(*autoreset: Autoreset, **options: object) -> RecordedSession:
    return RecordedSession(*autoreset, chosen_actions=True, **options)  # type: ignore[arg-type]


def shares(made: RecordedSession) -> list[float]:
    return [value for name, value in made.metrics.scalars if name == "actions/chosen"]


def own(*numbers: int) -> Leaves:
    return [np.array(numbers, np.int64)]


@pytest.mark.parametrize("mode", Mode)
def test_agent_gets_the_actions_of_a_step(mode: Mode) -> None:
    made = recorded(SAME, mode=mode)
    made.session.init(Init(obs(1, 2)))
    made.session.step(Step(rewards(1, 2), obs(3, 4), chosen=mask(0, 1), action=own(99, 7)))
    step = made.agent.last
    assert step.chosen is not None and step.actions is not None
    assert (step.chosen.tolist(), step.actions[0].tolist()) == ([False, True], [99, 7])
    assert step.env_steps == 2
    made.session.step(Step(rewards(1, 2), obs(3, 4)))
    assert made.agent.last.chosen is made.agent.last.actions is None
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 0)))
    assert made.agent.last.chosen is None
    assert shares(made) == [0.5, 0.0, 0.0]


def test_agent_gets_the_actions_of_a_reset_with_the_next_init() -> None:
    made = recorded(Autoreset.DISABLED)
    made.session.init(Init(obs(1, 2)))
    made.session.reset(Reset(rewards(1, 2), chosen=mask(1, 1), action=own(5, 6)))
    assert shares(made) == [1.0]
    made.session.init(Init(obs(3, 4)))
    step = made.agent.last
    assert step.chosen is not None and step.actions is not None
    assert (step.chosen.tolist(), step.actions[0].tolist()) == ([True, True], [5, 6])
    assert step.terminated.tolist() == [True, True]


def test_share_is_of_the_actions_that_were_completed() -> None:
    made = recorded(NEXT, environments=3)
    made.session.init(Init(obs(1, 2, 3)))
    made.session.step(Step(rewards(1, 2, 3), obs(1, 2, 3), truncated=mask(0, 1, 1)))
    made.session.step(
        Step(rewards(1, 2, 3), obs(1, 2, 3), first=mask(0, 1, 1), chosen=mask(1, 0, 0), action=own(1, 0, 0))
    )
    assert shares(made) == [0.0, 1.0]
    assert made.agent.last.env_steps == 1


def test_session_without_the_capability_records_no_share() -> None:
    made = RecordedSession(SAME)
    made.session.init(Init(obs(1, 2)))
    made.session.step(Step(rewards(1, 2), obs(3, 4)))
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 0)))
    assert shares(made) == []
