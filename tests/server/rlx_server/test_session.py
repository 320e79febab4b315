"""What a connection's messages mean for its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, AgentContext, Leaves, StepResult
from relaax.metrics import check_name
from relaax.rlx import (
    Actions,
    Autoreset,
    Box,
    Discrete,
    Episode,
    EpisodeReturns,
    Hello,
    Init,
    Metrics,
    Mode,
    Reset,
    Step,
)
from relaax.server.rlx_server.workers.session import AgentSession
from support.offline_client import OfflineClient, OfflineMetrics
from support.rlx_pair import Pair

DISABLED, SAME, NEXT = Autoreset.DISABLED, Autoreset.SAME_STEP, Autoreset.NEXT_STEP
SPACES = {"observation_space": Box(shape=(1,)), "action_space": Discrete(100)}
UNUSED: Any = {"parameters": OfflineClient(), "metrics": OfflineMetrics()}


class Recorder(AgentBase):
    """Remembers what it was told; its actions are how often it was asked."""

    def __init__(self, environments: int) -> None:
        super().__init__(
            None,
            AgentContext(**SPACES, environments=environments, actors=(), seed=0, exploit=False, **UNUSED),
        )
        self.told: list[Leaves | StepResult] = []

    def reset(self, observations: Leaves) -> Leaves:
        return self._note(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._note(step)

    def _note(self, what: Leaves | StepResult) -> Leaves:
        self.told.append(what)
        return [np.full(self.context.environments, len(self.told), np.int64)]

    @property
    def last(self) -> StepResult:
        step = self.told[-1]
        assert isinstance(step, StepResult)
        return step


class Talk:
    """A session behind a real connection: it gets what came over the wire, and answers."""

    def __init__(self, hello: Hello, agent: AgentBase, metrics: OfflineMetrics, clock: Callable[[], float]) -> None:
        self._pair = Pair()
        self._pair.open(hello)
        self._session = AgentSession(self._pair.server, agent, metrics, clock)

    @property
    def episode_ended(self) -> bool:
        return self._session.episode_ended

    def init(self, message: Init) -> Actions:
        return self._pair.server_sends(self._session.init(self._pair.client_sends(message)))

    def step(self, message: Step) -> Actions:
        return self._pair.server_sends(self._session.step(self._pair.client_sends(message)))

    def reset(self, message: Reset) -> EpisodeReturns:
        return self._pair.server_sends(self._session.reset(self._pair.client_sends(message)))

    def metrics(self, message: Metrics) -> None:
        self._session.answer(self._pair.client_sends(message))


class Played:
    """A session with an agent that remembers and metrics that are kept."""

    def __init__(
        self,
        *autoreset: Autoreset,
        environments: int = 2,
        reports_episodes: bool = False,
        mode: Mode = Mode.TRAIN,
    ) -> None:
        self.agent = Recorder(environments)
        self.metrics = OfflineMetrics()
        self.now = 0.0
        hello = Hello(
            **SPACES, environments=environments, autoreset=autoreset, reports_episodes=reports_episodes, mode=mode
        )
        self.session = Talk(hello, self.agent, self.metrics, clock=lambda: self.now)


def obs(*values: float) -> Leaves:
    return [np.array(values, np.float32).reshape(-1, 1)]


def values_of(leaves: Leaves | None) -> list[float]:
    assert leaves is not None
    return leaves[0][:, 0].tolist()


def rewards(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def mask(*values: int) -> np.ndarray:
    return np.array(values, np.bool_)


def test_init_is_a_reset_and_its_answer_the_agents() -> None:
    played = Played(SAME)
    answer = played.session.init(Init(obs(1, 2)))
    assert answer.action[0].tolist() == [1, 1]
    assert values_of(played.agent.told[0]) == [1, 2]  # type: ignore[arg-type]


def test_masks_that_were_left_out_are_false_everywhere() -> None:
    played = Played(SAME)
    played.session.init(Init(obs(0, 0)))
    answer = played.session.step(Step(rewards(3, 4), obs(5, 6)))
    assert answer.action[0].tolist() == [2, 2]
    step = played.agent.last
    assert step.rewards.tolist() == [3, 4]
    assert values_of(step.observations) == [5, 6]
    for each in (step.terminated, step.truncated, step.first):
        assert each.tolist() == [False, False]
        assert each.dtype == np.bool_
    assert step.final_observations is None
    assert not played.session.episode_ended
    assert played.metrics.episodes == []


def test_same_step_gives_the_agent_the_final_observation_that_came_beside() -> None:
    played = Played(SAME)
    played.session.init(Init(obs(0, 0)))
    played.session.step(
        Step(rewards(1, 2), obs(10, 1), truncated=mask(1, 0), final_observation=obs(99, 0), terminated=None)
    )
    step = played.agent.last
    assert step.truncated.tolist() == [True, False]
    assert values_of(step.observations) == [10, 1]
    assert values_of(step.final_observations)[0] == 99
    assert played.session.episode_ended
    assert played.metrics.episodes == [(1.0, 1)]


def test_next_step_gives_the_observation_itself_as_final_and_marks_what_follows() -> None:
    played = Played(NEXT)
    played.session.init(Init(obs(0, 0)))
    played.session.step(Step(rewards(1, 2), obs(7, 8), terminated=mask(0, 1)))
    step = played.agent.last
    assert step.terminated.tolist() == [False, True]
    assert values_of(step.final_observations)[1] == 8
    played.session.step(Step(rewards(1, 500), obs(9, 0), first=mask(0, 1)))
    step = played.agent.last
    assert step.first.tolist() == [False, True]
    assert step.env_steps == 1
    played.session.step(Step(rewards(1, 3), obs(1, 1), terminated=mask(1, 1)))
    assert played.metrics.episodes == [(2.0, 1), (3.0, 3), (3.0, 1)]  # the void reward of 500 is nowhere


def test_each_environment_of_a_mixed_connection_ends_in_its_own_way() -> None:
    played = Played(SAME, NEXT, environments=2)
    played.session.init(Init(obs(0, 0)))
    message = Step(rewards(1, 1), obs(10, 20), truncated=mask(1, 1), final_observation=obs(98, 77))
    played.session.step(message)
    step = played.agent.last
    assert values_of(step.final_observations) == [98, 20]
    assert values_of(step.observations) == [10, 20]
    assert message.final_observation is not None
    assert values_of(message.final_observation) == [98, 77], "what came over the wire was written to"


def test_reset_and_the_init_after_it_are_one_step_for_the_agent() -> None:
    played = Played(DISABLED, environments=1)
    played.session.init(Init(obs(0)))
    played.session.step(Step(rewards(2), obs(1)))
    returns = played.session.reset(Reset(rewards(3)))
    assert returns.episode_return.tolist() == [5.0]
    assert played.session.episode_ended
    assert played.metrics.episodes == [(5.0, 2)]
    assert len(played.agent.told) == 2, "the outcome waits for the observation that follows it"
    answer = played.session.init(Init(obs(4)))
    assert answer.action[0].tolist() == [3]
    step = played.agent.last
    assert step.rewards.tolist() == [3]
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [False]
    assert values_of(step.observations) == [4]
    assert not played.session.episode_ended, "an episode has just begun"
    played.session.step(Step(rewards(1), obs(5)))
    assert values_of(played.agent.last.observations) == [5]


def test_a_reset_between_two_episodes_ends_none() -> None:
    played = Played(NEXT)
    played.session.init(Init(obs(0, 0)))
    played.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 0)))
    returns = played.session.reset(Reset(rewards(70, 8)))  # environment 0 had nothing to act on
    assert returns.episode_return.tolist() == [0.0, 14.0]
    assert played.metrics.episodes == [(5.0, 1), (14.0, 2)]
    played.session.init(Init(obs(2, 2)))
    step = played.agent.last
    assert step.first.tolist() == [True, False]
    assert step.terminated.tolist() == [False, True]
    assert step.env_steps == 1
    played.session.step(Step(rewards(1, 1), obs(3, 3)))
    assert played.agent.last.first.tolist() == [False, False]
    assert played.session.reset(Reset(rewards(1, 1))).episode_return.tolist() == [2.0, 2.0]


def test_a_reset_right_after_a_same_step_end_ends_the_episode_that_has_begun_with_it() -> None:
    played = Played(SAME, NEXT)
    played.session.init(Init(obs(0, 0)))
    played.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 1), final_observation=obs(9, 9)))
    assert played.session.reset(Reset(rewards(7, 8))).episode_return.tolist() == [7.0, 0.0]
    assert played.session.episode_ended
    assert played.metrics.episodes == [(5.0, 1), (6.0, 1), (7.0, 1)]
    played.session.init(Init(obs(2, 2)))
    step = played.agent.last
    assert step.first.tolist() == [False, True]
    assert step.terminated.tolist() == [True, False]
    assert step.env_steps == 1


def test_a_reset_right_after_an_init_ends_every_episode_whatever_had_ended_before() -> None:
    played = Played(NEXT)
    played.session.init(Init(obs(0, 0)))
    played.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 0)))
    played.session.reset(Reset(rewards(0, 7)))
    played.session.init(Init(obs(2, 2)))
    assert played.session.reset(Reset(rewards(3, 4))).episode_return.tolist() == [3.0, 4.0]
    assert played.metrics.episodes == [(5.0, 1), (13.0, 2), (3.0, 1), (4.0, 1)]


def test_a_reset_after_a_plain_step_ends_every_episode_whatever_ended_before() -> None:
    played = Played(NEXT)
    played.session.init(Init(obs(0, 0)))
    played.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 0)))
    played.session.step(Step(rewards(50, 6), obs(2, 2), first=mask(1, 0)))
    played.session.step(Step(rewards(1, 1), obs(3, 3)))
    assert played.session.reset(Reset(rewards(1, 1))).episode_return.tolist() == [2.0, 14.0]


def test_a_truncated_reset_brings_the_final_observation_to_the_agent() -> None:
    played = Played(DISABLED, environments=2)
    played.session.init(Init(obs(0, 0)))
    played.session.reset(Reset(rewards(1, 1), truncated=mask(0, 1), final_observation=obs(5, 6)))
    played.session.init(Init(obs(7, 8)))
    step = played.agent.last
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]
    assert values_of(step.final_observations) == [5, 6]


def test_an_episode_that_was_under_way_at_init_is_not_reported() -> None:
    played = Played(SAME)
    played.session.init(Init(obs(0, 0), partial=mask(1, 0)))
    played.session.step(Step(rewards(1, 2), obs(1, 1), terminated=mask(1, 1)))
    assert played.metrics.episodes == [(2.0, 1)]
    played.session.step(Step(rewards(3, 4), obs(1, 1), terminated=mask(1, 0)))
    assert played.metrics.episodes == [(2.0, 1), (3.0, 1)]


def test_a_client_that_reports_episodes_is_believed_and_not_counted_after() -> None:
    played = Played(SAME, reports_episodes=True)
    played.session.init(Init(obs(0, 0)))
    played.session.step(Step(rewards(1, 1), obs(1, 1), terminated=mask(1, 1)))  # a life was lost
    assert played.metrics.episodes == []
    assert played.session.episode_ended
    whole = [Episode(environment=1, episode_return=321.5, length=77)]
    played.session.step(Step(rewards(1, 1), obs(1, 1), terminated=mask(0, 1), episodes=whole))
    assert played.metrics.episodes == [(321.5, 77)]


def test_episodes_of_exploit_mode_are_kept_apart_from_those_of_training() -> None:
    played = Played(SAME, mode=Mode.EXPLOIT)
    played.session.init(Init(obs(0, 0)))
    played.now = 2.0
    played.session.step(Step(rewards(4, 1), obs(1, 1), terminated=mask(1, 0)))
    assert played.metrics.episodes == []
    assert played.metrics.scalars == [
        ("exploit/episode_return", 4.0),
        ("exploit/episode_length", 1),
        ("exploit/episode_seconds", 2.0),
        ("exploit/episode_reward_per_second", 2.0),
    ]


def test_an_episodes_seconds_and_its_reward_per_second() -> None:
    played = Played(NEXT, environments=1)
    played.session.init(Init(obs(0)))
    played.now = 4.0
    played.session.step(Step(rewards(2), obs(1), terminated=mask(1)))
    played.now = 5.0
    played.session.step(Step(rewards(99), obs(0), first=mask(1)))
    played.now = 5.5
    played.session.step(Step(rewards(3), obs(1), terminated=mask(1)))
    assert played.metrics.scalars == [
        ("episode/seconds", 4.0),
        ("episode/reward_per_second", 0.5),
        ("episode/seconds", 0.5),
        ("episode/reward_per_second", 6.0),
    ]


def test_an_episode_that_the_client_reports_lasts_since_the_one_before() -> None:
    played = Played(SAME, environments=2, reports_episodes=True)
    played.session.init(Init(obs(0, 0), partial=mask(0, 1)))
    for now in (3.0, 7.0):
        played.now = now
        played.session.step(Step(rewards(1, 1), obs(0, 0), episodes=(Episode(0, 6.0, 5), Episode(1, 8.0, 5))))
    scalars = played.metrics.scalars
    assert [value for name, value in scalars if name == "episode/seconds"] == [3.0, 4.0, 4.0]  # the partial one: none
    assert [value for name, value in scalars if name == "episode/reward_per_second"] == [2.0, 1.5, 2.0]


def test_scalars_of_the_environment_live_under_client() -> None:
    played = Played(SAME)
    played.session.metrics(Metrics([("height", 1.5), ("fuel/left", 2.0)]))
    assert played.metrics.scalars == [("client/height", 1.5), ("client/fuel/left", 2.0)]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *[(name, name) for name in ("x" * 128, "a//b", "a/", "a.b-c_d/9", "1st", "-", "../x")],
        *[("act latency on client", "act_latency_on_client"), ("/a", "_a"), ("//", "_/"), ("\0\n", "__")],
        ("é" * 64, "_" * 64),
    ],
)  # fmt: skip
def test_whatever_name_the_protocol_allows_is_one_for_metrics(name: str, form: str) -> None:
    """As a stranger's client sends it: Python's own brings names into form itself."""
    played = Played(SAME)
    played.session.metrics(Metrics([(name, 1.0)]))
    assert played.metrics.scalars == [(check_name(f"client/{form}"), 1.0)]


@pytest.mark.parametrize("autoreset", [SAME, NEXT])
def test_one_habit_said_once_is_that_of_all_environments(autoreset: Autoreset) -> None:
    played = Played(autoreset, environments=3)
    played.session.init(Init(obs(0, 0, 0)))
    final = obs(7, 8, 9) if autoreset is SAME else None
    played.session.step(Step(rewards(0, 0, 0), obs(1, 2, 3), truncated=mask(1, 1, 1), final_observation=final))
    assert values_of(played.agent.last.final_observations) == ([7, 8, 9] if autoreset is SAME else [1, 2, 3])
