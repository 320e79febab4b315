"""Tests of a session whose environments are out of step: held rows, leaving and coming environments, void rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax.algorithm_base import AgentContext
from relaax.rlx import Actions, Autoreset, Episode, Hello, Init, Reset, Space, Step
from relaax.server.rlx_server.workers.session import env_steps_of
from relaax.server.rlx_server.workers.void_rows import void_actions
from support.offline_client import OfflineClient
from support.recorded_session import LinkedSession, RecordedSession, mask, obs, rewards, values_of
from support.rlx_pair import Pair
from support.rlx_strategies import spaces
from support.turn_algorithm import SPACES, Agent, Config
from support.turn_world import TurnWorld

DISABLED, SAME, NEXT = Autoreset.DISABLED, Autoreset.SAME_STEP, Autoreset.NEXT_STEP
MODES = [DISABLED, SAME, NEXT]
NAN = math.nan


def recorded(*autoreset: Autoreset, environments: int = 2, reports_episodes: bool = False) -> RecordedSession:
    return RecordedSession(*autoreset, environments=environments, reports_episodes=reports_episodes, out_of_step=True)


@pytest.mark.parametrize("autoreset", MODES)
def test_playing_and_idle_row_is_held_with_its_valid_observation(autoreset: Autoreset) -> None:
    made = recorded(autoreset)
    made.session.init(Init(obs(1, 2)))
    made.session.step(Step(rewards(1, 99), obs(3, NAN), idle=mask(0, 1)))
    step = made.agent.last
    assert values_of(step.observations) == [3, 2]
    assert not step.observations[0].flags.writeable
    assert step.rewards.tolist() == [1, 0]
    assert step.held is not None
    assert (step.held.tolist(), step.acted.tolist()) == ([False, True], [True, False])
    assert step.env_steps == 1
    made.session.step(Step(rewards(1, 5), obs(4, 6)))
    assert (made.agent.last.plain, made.agent.last.rewards.tolist()) == (True, [1, 5])
    made.session.step(Step(rewards(1, 99), obs(7, NAN), idle=mask(0, 1)))
    assert values_of(made.agent.last.observations) == [7, 6]
    assert made.session.reset(Reset(rewards(1, 1))).episode_return.tolist() == [4, 6]
    assert made.metrics.episodes == [(4.0, 4), (6.0, 2)]


def test_row_that_leaves_gives_its_outcome_and_then_comes() -> None:
    made = recorded(SAME)
    made.session.init(Init(obs(1, 2)))
    final = obs(0, 9)
    made.session.step(Step(rewards(1, 7), obs(3, NAN), truncated=mask(0, 1), final_observation=final, idle=mask(0, 1)))
    step = made.agent.last
    assert made.session.episode_ended
    assert made.metrics.episodes == [(7.0, 1)]
    assert values_of(step.observations) == [3, 2]
    assert values_of(step.final_observations)[1] == 9
    assert step.unwanted is not None
    assert (step.unwanted.tolist(), step.held, step.rewards.tolist()) == ([False, True], None, [1, 7])
    made.session.step(Step(rewards(1, 55), obs(4, NAN), idle=mask(0, 1)))  # still away
    assert made.agent.last.acted.tolist() == [True, False]
    assert values_of(made.agent.last.observations) == [4, 2]
    made.session.step(Step(rewards(1, 66), obs(5, 8), first=mask(0, 1)))  # it comes
    step = made.agent.last
    assert (step.first.tolist(), step.held, step.unwanted) == ([False, True], None, None)
    assert values_of(step.observations) == [5, 8]
    made.session.step(Step(rewards(1, 2), obs(6, 0), terminated=mask(0, 1), idle=mask(0, 1)))
    assert made.metrics.episodes == [(7.0, 1), (2.0, 1)]


def test_next_step_row_that_leaves_has_its_final_observation() -> None:
    made = recorded(NEXT)
    made.session.init(Init(obs(1, 2)))
    made.session.step(Step(rewards(1, 7), obs(NAN, 9), truncated=mask(0, 1), idle=mask(1, 1)))
    step = made.agent.last
    assert values_of(step.observations) == values_of(step.final_observations) == [1, 9]
    assert step.held is not None
    assert (step.held.tolist(), step.rewards.tolist()) == ([True, False], [0, 7])
    made.session.step(Step(rewards(1, 0), obs(3, 4), first=mask(0, 1)))
    assert made.agent.last.first.tolist() == [False, True]


@pytest.mark.parametrize("out_of_step", [False, True])
def test_action_after_a_next_step_end_is_unwanted(out_of_step: bool) -> None:
    made = RecordedSession(NEXT, out_of_step=out_of_step)
    made.session.init(Init(obs(1, 2)))
    made.session.step(Step(rewards(1, 1), obs(3, 4), terminated=mask(0, 1)))
    step = made.agent.last
    assert step.unwanted is not None
    assert (step.unwanted.tolist(), step.held) == ([False, True], None)
    made.session.step(Step(rewards(1, 0), obs(5, 6), first=mask(0, 1)))
    assert made.agent.last.unwanted is None


def test_two_players_take_turns() -> None:
    """Play the example of RLX.md."""
    made = recorded(SAME)
    made.session.init(Init(obs(10, NAN), idle=mask(0, 1)))
    assert values_of(made.agent.calls[0]) == [10, 10]  # type: ignore[arg-type]
    made.session.step(Step(rewards(5, 5), obs(NAN, 20), idle=mask(1, 0), first=mask(0, 1)))
    assert made.agent.last.env_steps == 0
    made.session.step(Step(rewards(0, 5), obs(11, NAN), idle=mask(0, 1)))
    assert made.agent.last.acted.tolist() == [True, False]
    made.session.step(Step(rewards(1, -1), obs(NAN, NAN), terminated=mask(1, 1), idle=mask(1, 1)))
    assert made.agent.last.rewards.tolist() == [1, -1]
    assert values_of(made.agent.last.observations) == [11, 20]
    assert made.metrics.episodes == [(1.0, 2), (-1.0, 1)]


@pytest.mark.parametrize("autoreset", MODES)
def test_reset_of_the_agent_waits_until_an_environment_plays(autoreset: Autoreset) -> None:
    made = recorded(autoreset)
    assert made.session.init(Init(obs(NAN, NAN), idle=mask(1, 1))).action[0].tolist() == [0, 0]
    assert made.session.step(Step(rewards(5, 5), obs(NAN, NAN), idle=mask(1, 1))).action[0].tolist() == [0, 0]
    assert made.agent.calls == []
    answer = made.session.step(Step(rewards(5, 5), obs(NAN, 2), first=mask(0, 1), idle=mask(1, 0)))
    assert answer.action[0].tolist() == [1, 1]
    assert [values_of(call) for call in made.agent.calls] == [[2, 2]]  # type: ignore[arg-type]
    made.session.step(Step(rewards(5, 3), obs(1, 3), first=mask(1, 0)))
    assert made.agent.last.first.tolist() == [True, False]
    assert made.session.reset(Reset(rewards(1, 1))).episode_return.tolist() == [1, 4]
    assert made.metrics.episodes == [(1.0, 1), (4.0, 2)]


def test_reset_before_any_environment_plays_ends_nothing() -> None:
    made = recorded(SAME)
    made.session.init(Init(obs(NAN, NAN), idle=mask(1, 1)))
    assert made.session.reset(Reset(rewards(5, 5))).episode_return.tolist() == [0, 0]
    assert not made.session.episode_ended
    made.session.init(Init(obs(1, NAN), idle=mask(0, 1)))
    assert [values_of(call) for call in made.agent.calls] == [[1, 1]]  # type: ignore[arg-type]
    assert made.metrics.episodes == []


def test_step_with_only_held_rows_does_not_reach_the_agent() -> None:
    made = recorded(SAME)
    made.session.init(Init(obs(1, 2)))
    answer = made.session.step(Step(rewards(9, 9), obs(NAN, NAN), idle=mask(1, 1)))
    assert (answer.action[0].tolist(), len(made.agent.calls)) == ([0, 0], 1)
    made.session.step(Step(rewards(1, 1), obs(NAN, NAN), terminated=mask(1, 0), idle=mask(1, 1)))
    assert made.agent.last.terminated.tolist() == [True, False]
    assert values_of(made.agent.last.observations) == [1, 2]


def test_init_after_a_reset_may_leave_environments_idle() -> None:
    """The environments play on, leave, stay away and come with this init."""
    made = recorded(SAME, environments=4)
    made.session.init(Init(obs(1, 2, 3, 4), idle=mask(0, 0, 1, 1)))
    returns = made.session.reset(Reset(rewards(1, 2, 90, 90)))
    assert returns.episode_return.tolist() == [1, 2, 0, 0]
    made.session.init(Init(obs(5, NAN, NAN, 8), idle=mask(0, 1, 1, 0)))
    step = made.agent.last
    assert step.terminated.tolist() == [True, True, False, False]
    assert step.first.tolist() == [False, False, False, True]
    assert step.unwanted is not None
    assert step.held is not None
    assert (step.unwanted.tolist(), step.held.tolist()) == ([False, True, True, False], [False, False, True, False])
    assert values_of(step.observations) == [5, 2, 1, 8]
    assert step.rewards[:3].tolist() == [1, 2, 0]
    assert made.metrics.episodes == [(1.0, 1), (2.0, 1)]


def test_all_idle_init_after_a_reset_gives_the_outcomes() -> None:
    made = recorded(NEXT)
    made.session.init(Init(obs(1, 2)))
    made.session.step(Step(rewards(1, 1), obs(3, 4), terminated=mask(0, 1)))
    made.session.reset(Reset(rewards(6, 90)))
    made.session.init(Init(obs(NAN, NAN), idle=mask(1, 1)))
    step = made.agent.last
    assert (step.terminated.tolist(), step.first.tolist()) == ([True, False], [False, False])
    assert step.held is not None
    assert (step.held.tolist(), step.rewards.tolist()) == ([False, True], [6, 0])
    assert values_of(step.observations) == [3, 4]
    calls = len(made.agent.calls)
    made.session.reset(Reset(rewards(90, 90)))
    made.session.init(Init(obs(NAN, NAN), idle=mask(1, 1)))
    assert len(made.agent.calls) == calls, "nothing has ended, and no action is wanted"


def test_partial_episode_idle_at_init_stays_partial() -> None:
    made = recorded(SAME)
    made.session.init(Init(obs(NAN, NAN), partial=mask(1, 0), idle=mask(1, 1)))
    made.session.step(Step(rewards(9, 9), obs(1, 2), first=mask(1, 1)))
    made.session.step(Step(rewards(3, 4), obs(1, 2), terminated=mask(1, 1)))
    assert made.metrics.episodes == [(4.0, 1)]
    made.session.step(Step(rewards(5, 6), obs(1, 2), terminated=mask(1, 0)))
    assert made.metrics.episodes == [(4.0, 1), (5.0, 1)]


def test_seconds_of_an_episode_start_when_its_environment_comes() -> None:
    made = recorded(SAME)
    made.session.init(Init(obs(1, NAN), idle=mask(0, 1)))
    made.now = 3.0
    made.session.step(Step(rewards(1, 0), obs(1, 2), first=mask(0, 1)))
    made.now = 5.0
    made.session.step(Step(rewards(1, 1), obs(1, NAN), terminated=mask(0, 1), idle=mask(0, 1)))
    made.now = 20.0
    made.session.step(Step(rewards(1, 0), obs(1, 2), first=mask(0, 1)))
    made.now = 21.0
    made.session.step(Step(rewards(1, 1), obs(1, 2), terminated=mask(0, 1)))
    assert [value for name, value in made.metrics.scalars if name == "episode/seconds"] == [2.0, 1.0]


def test_seconds_of_a_reported_episode_start_when_it_comes() -> None:
    made = recorded(SAME, reports_episodes=True)
    made.session.init(Init(obs(1, NAN), idle=mask(0, 1)))
    made.now = 3.0
    made.session.step(Step(rewards(1, 0), obs(1, 2), first=mask(0, 1)))
    made.now = 5.0  # a life is lost, but the whole episode continues
    made.session.step(Step(rewards(1, 1), obs(1, NAN), terminated=mask(0, 1), idle=mask(0, 1)))
    made.session.step(Step(rewards(1, 0), obs(1, 2), first=mask(0, 1)))
    made.now = 9.0
    whole = (Episode(1, 4.0, 3),)
    made.session.step(Step(rewards(1, 1), obs(1, NAN), terminated=mask(0, 1), idle=mask(0, 1), episodes=whole))
    made.now = 20.0
    made.session.step(Step(rewards(1, 0), obs(1, 2), first=mask(0, 1)))
    made.now = 21.0
    made.session.step(Step(rewards(1, 1), obs(1, 2), terminated=mask(0, 1), episodes=whole))
    made.now = 24.0
    made.session.step(Step(rewards(1, 1), obs(1, 2), terminated=mask(0, 1), episodes=whole))
    assert [value for name, value in made.metrics.scalars if name == "episode/seconds"] == [6.0, 1.0, 3.0]


def test_only_completed_actions_are_counted_as_steps() -> None:
    made = recorded(SAME, environments=4)
    server = made.session.pair.server
    counted = []

    def send(message: Init | Step | Reset) -> None:
        received = made.session.pair.client_sends(message)
        counted.append(env_steps_of(received, 4, server))
        made.session.pair.server_sends(made.session.session.answer(received))  # type: ignore[arg-type]

    send(Init(obs(1, 2, 3, 4), idle=mask(0, 0, 0, 1)))
    send(Step(rewards(0, 0, 0, 0), obs(1, 2, 3, 4), first=mask(0, 0, 0, 1)))
    send(Step(rewards(0, 0, 0, 0), obs(1, 2, 3, 4)))
    ends = {"terminated": mask(1, 0, 0, 0), "truncated": mask(0, 1, 0, 0), "final_observation": obs(1, 2, 3, 4)}
    send(Step(rewards(0, 0, 0, 0), obs(1, 2, 3, 4), idle=mask(1, 1, 1, 0), **ends))
    send(Step(rewards(0, 0, 0, 0), obs(1, 2, 3, 4), first=mask(1, 0, 0, 0), idle=mask(0, 1, 1, 0)))
    send(Reset(rewards(0, 0, 0, 0)))
    assert counted == [0, 3, 4, 3, 1, 3]


@given(space=spaces, environments=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_void_actions_are_legal_in_every_space(space: Space, environments: int) -> None:
    pair = Pair()
    pair.open(action_space=space, environments=environments)
    pair.client_sends(Init([np.zeros((environments, 2), np.float32)]))
    pair.server_sends(Actions(void_actions(space, environments)))


def or_none(mask: np.ndarray) -> np.ndarray | None:
    return mask if mask.any() else None


@given(seed=st.integers(0, 2**32 - 1), modes=st.lists(st.sampled_from(MODES), min_size=1, max_size=4), data=st.data())
@settings(max_examples=150, deadline=None)
def test_every_completed_action_reaches_the_agent_once(seed: int, modes: list[Autoreset], data: st.DataObject) -> None:
    rng, environments = np.random.default_rng(seed), len(modes)
    parameters = OfflineClient()
    context = AgentContext(
        **SPACES,
        environments=environments,
        actors=(),
        seed=0,
        exploit=False,
        parameters=parameters,
        metrics=parameters.metrics,
        out_of_step=True,
    )
    agent = Agent(Config(path=""), context)
    hello = Hello(**SPACES, environments=environments, autoreset=modes, out_of_step=True)
    session = LinkedSession(hello, agent, parameters.metrics, clock=lambda: 0.0)
    world = TurnWorld(modes, rng)

    def begin() -> None:
        states, idle = world.begin(share=rng.random())
        world.take(session.init(Init([states], idle=or_none(idle))).action[0])

    begin()
    for _ in range(data.draw(st.integers(0, 40))):
        if rng.random() < 0.1:
            reward, cut, finals, returns = world.reset()
            answer = session.reset(Reset(np.nan_to_num(reward), or_none(cut), [np.nan_to_num(finals)]))
            assert answer.episode_return.tolist() == returns.tolist()
            begin()
            continue
        made = world.outcomes()
        needs_final = (made.truncated & [mode is SAME for mode in modes]).any()
        message = Step(
            np.nan_to_num(made.rewards),
            [made.states],
            or_none(made.terminated),
            or_none(made.truncated),
            [made.finals] if needs_final else None,
            or_none(made.first),
            idle=or_none(made.idle),
        )
        world.take(session.step(message).action[0])
    recorded_episodes = [{"return": value, "length": length} for value, length in parameters.metrics.episodes]
    world.check([*agent.journal, *recorded_episodes])
