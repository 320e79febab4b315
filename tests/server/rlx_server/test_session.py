"""Tests of a session: how the messages of a connection become calls of its agent."""

from __future__ import annotations

import pytest

from relaax.metrics import check_name
from relaax.rlx import Autoreset, Episode, Init, Metrics, Mode, Reset, Step
from support.recorded_session import RecordedSession, mask, obs, rewards, values_of

DISABLED, SAME, NEXT = Autoreset.DISABLED, Autoreset.SAME_STEP, Autoreset.NEXT_STEP


def test_init_resets_the_agent_and_returns_its_actions() -> None:
    recorded = RecordedSession(SAME)
    answer = recorded.session.init(Init(obs(1, 2)))
    assert answer.action[0].tolist() == [1, 1]
    assert values_of(recorded.agent.calls[0]) == [1, 2]  # type: ignore[arg-type]


def test_omitted_masks_are_false_for_all_environments() -> None:
    recorded = RecordedSession(SAME)
    recorded.session.init(Init(obs(0, 0)))
    answer = recorded.session.step(Step(rewards(3, 4), obs(5, 6)))
    assert answer.action[0].tolist() == [2, 2]
    step = recorded.agent.last
    assert step.rewards.tolist() == [3, 4]
    assert values_of(step.observations) == [5, 6]
    for each in (step.terminated, step.truncated, step.first):
        assert each.tolist() == [False, False]
        assert each.dtype == bool
    assert step.final_observations is None
    assert not recorded.session.episode_ended
    assert recorded.metrics.episodes == []


def test_same_step_passes_the_final_observation_to_the_agent() -> None:
    recorded = RecordedSession(SAME)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(
        Step(rewards(1, 2), obs(10, 1), truncated=mask(1, 0), final_observation=obs(99, 0), terminated=None)
    )
    step = recorded.agent.last
    assert step.truncated.tolist() == [True, False]
    assert values_of(step.observations) == [10, 1]
    assert values_of(step.final_observations)[0] == 99
    assert recorded.session.episode_ended
    assert recorded.metrics.episodes == [(1.0, 1)]


def test_next_step_takes_the_observation_as_the_final_one() -> None:
    recorded = RecordedSession(NEXT)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(Step(rewards(1, 2), obs(7, 8), terminated=mask(0, 1)))
    step = recorded.agent.last
    assert step.terminated.tolist() == [False, True]
    assert values_of(step.final_observations)[1] == 8
    recorded.session.step(Step(rewards(1, 500), obs(9, 0), first=mask(0, 1)))
    step = recorded.agent.last
    assert step.first.tolist() == [False, True]
    assert step.env_steps == 1
    recorded.session.step(Step(rewards(1, 3), obs(1, 1), terminated=mask(1, 1)))
    assert recorded.metrics.episodes == [(2.0, 1), (3.0, 3), (3.0, 1)]  # the reward of 500 belongs to no episode


def test_mixed_autoresets_are_handled_per_environment() -> None:
    recorded = RecordedSession(SAME, NEXT, environments=2)
    recorded.session.init(Init(obs(0, 0)))
    message = Step(rewards(1, 1), obs(10, 20), truncated=mask(1, 1), final_observation=obs(98, 77))
    recorded.session.step(message)
    step = recorded.agent.last
    assert values_of(step.final_observations) == [98, 20]
    assert values_of(step.observations) == [10, 20]
    assert message.final_observation is not None
    assert values_of(message.final_observation) == [98, 77], "the session must not change the message"


def test_reset_and_the_next_init_are_one_step_for_the_agent() -> None:
    recorded = RecordedSession(DISABLED, environments=1)
    recorded.session.init(Init(obs(0)))
    recorded.session.step(Step(rewards(2), obs(1)))
    returns = recorded.session.reset(Reset(rewards(3)))
    assert returns.episode_return.tolist() == [5.0]
    assert recorded.session.episode_ended
    assert recorded.metrics.episodes == [(5.0, 2)]
    assert len(recorded.agent.calls) == 2, "the outcome is kept until the next observation"
    answer = recorded.session.init(Init(obs(4)))
    assert answer.action[0].tolist() == [3]
    step = recorded.agent.last
    assert step.rewards.tolist() == [3]
    assert step.terminated.tolist() == [True]
    assert step.truncated.tolist() == [False]
    assert values_of(step.observations) == [4]
    assert not recorded.session.episode_ended, "an episode has just begun"
    recorded.session.step(Step(rewards(1), obs(5)))
    assert values_of(recorded.agent.last.observations) == [5]


def test_reset_between_two_episodes_ends_no_episode() -> None:
    recorded = RecordedSession(NEXT)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 0)))
    returns = recorded.session.reset(Reset(rewards(70, 8)))  # environment 0 is between two episodes
    assert returns.episode_return.tolist() == [0.0, 14.0]
    assert recorded.metrics.episodes == [(5.0, 1), (14.0, 2)]
    recorded.session.init(Init(obs(2, 2)))
    step = recorded.agent.last
    assert step.first.tolist() == [True, False]
    assert step.terminated.tolist() == [False, True]
    assert step.env_steps == 1
    recorded.session.step(Step(rewards(1, 1), obs(3, 3)))
    assert recorded.agent.last.first.tolist() == [False, False]
    assert recorded.session.reset(Reset(rewards(1, 1))).episode_return.tolist() == [2.0, 2.0]


def test_reset_after_a_same_step_end_ends_the_new_episode() -> None:
    recorded = RecordedSession(SAME, NEXT)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 1), final_observation=obs(9, 9)))
    assert recorded.session.reset(Reset(rewards(7, 8))).episode_return.tolist() == [7.0, 0.0]
    assert recorded.session.episode_ended
    assert recorded.metrics.episodes == [(5.0, 1), (6.0, 1), (7.0, 1)]
    recorded.session.init(Init(obs(2, 2)))
    step = recorded.agent.last
    assert step.first.tolist() == [False, True]
    assert step.terminated.tolist() == [True, False]
    assert step.env_steps == 1


def test_reset_after_an_init_ends_every_episode() -> None:
    recorded = RecordedSession(NEXT)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 0)))
    recorded.session.reset(Reset(rewards(0, 7)))
    recorded.session.init(Init(obs(2, 2)))
    assert recorded.session.reset(Reset(rewards(3, 4))).episode_return.tolist() == [3.0, 4.0]
    assert recorded.metrics.episodes == [(5.0, 1), (13.0, 2), (3.0, 1), (4.0, 1)]


def test_reset_after_a_plain_step_ends_every_episode() -> None:
    recorded = RecordedSession(NEXT)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(Step(rewards(5, 6), obs(1, 1), terminated=mask(1, 0)))
    recorded.session.step(Step(rewards(50, 6), obs(2, 2), first=mask(1, 0)))
    recorded.session.step(Step(rewards(1, 1), obs(3, 3)))
    assert recorded.session.reset(Reset(rewards(1, 1))).episode_return.tolist() == [2.0, 14.0]


def test_truncated_reset_passes_the_final_observation() -> None:
    recorded = RecordedSession(DISABLED, environments=2)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.reset(Reset(rewards(1, 1), truncated=mask(0, 1), final_observation=obs(5, 6)))
    recorded.session.init(Init(obs(7, 8)))
    step = recorded.agent.last
    assert step.terminated.tolist() == [True, False]
    assert step.truncated.tolist() == [False, True]
    assert values_of(step.final_observations) == [5, 6]


def test_episode_that_was_partial_at_init_is_not_reported() -> None:
    recorded = RecordedSession(SAME)
    recorded.session.init(Init(obs(0, 0), partial=mask(1, 0)))
    recorded.session.step(Step(rewards(1, 2), obs(1, 1), terminated=mask(1, 1)))
    assert recorded.metrics.episodes == [(2.0, 1)]
    recorded.session.step(Step(rewards(3, 4), obs(1, 1), terminated=mask(1, 0)))
    assert recorded.metrics.episodes == [(2.0, 1), (3.0, 1)]


def test_episodes_reported_by_the_client_replace_counted_ones() -> None:
    recorded = RecordedSession(SAME, reports_episodes=True)
    recorded.session.init(Init(obs(0, 0)))
    recorded.session.step(Step(rewards(1, 1), obs(1, 1), terminated=mask(1, 1)))  # a life was lost
    assert recorded.metrics.episodes == []
    assert recorded.session.episode_ended
    whole = [Episode(environment=1, episode_return=321.5, length=77)]
    recorded.session.step(Step(rewards(1, 1), obs(1, 1), terminated=mask(0, 1), episodes=whole))
    assert recorded.metrics.episodes == [(321.5, 77)]


def test_exploit_episodes_are_reported_under_other_names() -> None:
    recorded = RecordedSession(SAME, mode=Mode.EXPLOIT)
    recorded.session.init(Init(obs(0, 0)))
    recorded.now = 2.0
    recorded.session.step(Step(rewards(4, 1), obs(1, 1), terminated=mask(1, 0)))
    assert recorded.metrics.episodes == []
    assert recorded.metrics.scalars == [
        ("exploit/episode_return", 4.0),
        ("exploit/episode_length", 1),
        ("exploit/episode_seconds", 2.0),
        ("exploit/episode_reward_per_second", 2.0),
    ]


def test_episode_seconds_and_reward_per_second_are_reported() -> None:
    recorded = RecordedSession(NEXT, environments=1)
    recorded.session.init(Init(obs(0)))
    recorded.now = 4.0
    recorded.session.step(Step(rewards(2), obs(1), terminated=mask(1)))
    recorded.now = 5.0
    recorded.session.step(Step(rewards(99), obs(0), first=mask(1)))
    recorded.now = 5.5
    recorded.session.step(Step(rewards(3), obs(1), terminated=mask(1)))
    assert recorded.metrics.scalars == [
        ("episode/seconds", 4.0),
        ("episode/reward_per_second", 0.5),
        ("episode/seconds", 0.5),
        ("episode/reward_per_second", 6.0),
    ]


def test_seconds_of_reported_episode_start_at_the_previous_end() -> None:
    recorded = RecordedSession(SAME, environments=2, reports_episodes=True)
    recorded.session.init(Init(obs(0, 0), partial=mask(0, 1)))
    for now in (3.0, 7.0):
        recorded.now = now
        recorded.session.step(Step(rewards(1, 1), obs(0, 0), episodes=(Episode(0, 6.0, 5), Episode(1, 8.0, 5))))
    scalars = recorded.metrics.scalars
    # The partial episode is not reported.
    assert [value for name, value in scalars if name == "episode/seconds"] == [3.0, 4.0, 4.0]
    assert [value for name, value in scalars if name == "episode/reward_per_second"] == [2.0, 1.5, 2.0]


def test_scalars_of_the_environment_are_prefixed_with_client() -> None:
    recorded = RecordedSession(SAME)
    recorded.session.metrics(Metrics([("height", 1.5), ("fuel/left", 2.0)]))
    assert recorded.metrics.scalars == [("client/height", 1.5), ("client/fuel/left", 2.0)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[(name, name) for name in ("x" * 128, "a//b", "a/", "a.b-c_d/9", "1st", "-", "../x")],
        *[("act latency on client", "act_latency_on_client"), ("/a", "_a"), ("//", "_/"), ("\0\n", "__")],
        ("é" * 64, "_" * 64),
    ],
)  # fmt: skip
def test_every_legal_scalar_name_becomes_a_valid_metric_name(name: str, expected: str) -> None:
    """Clients in other languages send such names; the Python client normalises them itself."""
    recorded = RecordedSession(SAME)
    recorded.session.metrics(Metrics([(name, 1.0)]))
    assert recorded.metrics.scalars == [(check_name(f"client/{expected}"), 1.0)]


@pytest.mark.parametrize("autoreset", [SAME, NEXT])
def test_single_autoreset_applies_to_all_environments(autoreset: Autoreset) -> None:
    recorded = RecordedSession(autoreset, environments=3)
    recorded.session.init(Init(obs(0, 0, 0)))
    final = obs(7, 8, 9) if autoreset is SAME else None
    recorded.session.step(Step(rewards(0, 0, 0), obs(1, 2, 3), truncated=mask(1, 1, 1), final_observation=final))
    assert values_of(recorded.agent.last.final_observations) == ([7, 8, 9] if autoreset is SAME else [1, 2, 3])
