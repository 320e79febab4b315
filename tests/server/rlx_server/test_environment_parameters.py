"""Tests of a session whose server sets parameters of the environments."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.lessons.values import Draw, Edition, ValueRange, draw
from relaax.rlx import Actions, Autoreset, Init, Reset, Step
from relaax.server.rlx_server.workers.episode_parameters import EpisodeParameters
from support.recorded_session import RecordedSession, mask, obs, rewards

DISABLED, SAME, NEXT = Autoreset.DISABLED, Autoreset.SAME_STEP, Autoreset.NEXT_STEP
RANGES = {"gravity": ValueRange(1, 9), "size": ValueRange.constant(4)}
SEED, JOINED, ACTORS = 3, 500, (7, 9)


class Made:
    """A session of two environments, and the numbers that its client has for the next episodes."""

    def __init__(self, *autoreset: Autoreset, out_of_step: bool = False) -> None:
        self.edition: Edition | None = Edition(1, 0, RANGES)
        self.parameters = EpisodeParameters(lambda: self.edition, SEED, JOINED, ACTORS)
        self.recorded = RecordedSession(*autoreset, out_of_step=out_of_step, parameters=self.parameters)
        self.session, self.metrics = self.recorded.session, self.recorded.metrics
        welcome = self.session.pair.client.welcome
        assert welcome is not None and welcome.parameters is not None
        assert welcome.parameter_names == ("gravity", "size")
        self.next = welcome.parameters.reshape(2, 2).tolist()

    def receive(self, answer: Actions) -> list[int]:
        """Take new numbers from an answer. Return the environments that have some."""
        if answer.parameters is not None:
            for index, row in zip(answer.parameters_of, answer.parameters.reshape(-1, 2).tolist(), strict=True):
                self.next[index] = row
        return list(answer.parameters_of)


def numbers(actor: int, episode: int, ranges: dict[str, ValueRange] = RANGES) -> list[float]:
    return draw(ranges, Draw(SEED, JOINED, actor, episode)).tolist()  # type: ignore[no-any-return]


def test_numbers_come_before_each_episode() -> None:
    made = Made(SAME)
    assert made.next == [numbers(7, 0), numbers(9, 0)]
    assert made.receive(made.session.init(Init(obs(1, 2)))) == [0, 1]
    assert made.next == [numbers(7, 1), numbers(9, 1)]
    assert made.receive(made.session.step(Step(rewards(1, 2), obs(3, 4)))) == []
    assert made.receive(made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(0, 1)))) == [1]
    assert made.next == [numbers(7, 1), numbers(9, 2)]
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(0, 1)))
    found = [(drawn.of, drawn.edition, drawn.numbers.tolist()) for drawn in made.metrics.drawn if drawn]
    assert found == [(Draw(SEED, JOINED, 9, k), 1, numbers(9, k)) for k in (0, 1)]


def test_next_step_episode_begins_when_it_is_first() -> None:
    made = Made(NEXT)
    made.receive(made.session.init(Init(obs(1, 2))))
    assert made.receive(made.session.step(Step(rewards(1, 2), obs(3, 4), truncated=mask(1, 0)))) == []
    assert made.receive(made.session.step(Step(rewards(1, 2), obs(3, 4), first=mask(1, 0)))) == [0]
    made.session.step(Step(rewards(1, 2), obs(3, 4), truncated=mask(1, 0)))
    assert [drawn.of.number for drawn in made.metrics.drawn if drawn] == [0, 1]


def test_reset_ends_episodes_and_init_begins_them() -> None:
    made = Made(DISABLED)
    made.receive(made.session.init(Init(obs(1, 2))))
    made.session.reset(Reset(rewards(1, 2)))
    assert made.next == [numbers(7, 1), numbers(9, 1)], "the client has them when it resets"
    assert made.receive(made.session.init(Init(obs(1, 2)))) == [0, 1]
    assert [drawn.numbers.tolist() for drawn in made.metrics.drawn if drawn] == [numbers(7, 0), numbers(9, 0)]


def test_environment_out_of_step_begins_when_it_comes() -> None:
    made = Made(SAME, out_of_step=True)
    assert made.receive(made.session.init(Init(obs(1, np.nan), idle=mask(0, 1)))) == [0]
    idle = Step(rewards(1, 0), obs(1, np.nan), idle=mask(0, 1))
    assert made.receive(made.session.step(idle)) == []
    come = Step(rewards(1, 0), obs(1, 2), first=mask(0, 1))
    assert made.receive(made.session.step(come)) == [1]
    leave = Step(rewards(1, 3), obs(1, np.nan), terminated=mask(0, 1), idle=mask(0, 1))
    assert made.receive(made.session.step(leave)) == []
    assert [drawn.of for drawn in made.metrics.drawn if drawn] == [Draw(SEED, JOINED, 9, 0)]


def test_answer_to_idle_environments_may_have_numbers() -> None:
    made = Made(SAME, out_of_step=True)
    away = Init(obs(np.nan, np.nan), idle=mask(1, 1))
    assert made.receive(made.session.init(away)) == []
    made.edition = Edition(2, 1, RANGES | {"size": ValueRange.constant(8)})
    waiting = made.session.step(Step(rewards(0, 0), obs(np.nan, np.nan), idle=mask(1, 1)))
    assert made.receive(waiting) == [0, 1]
    assert made.receive(made.session.step(Step(rewards(0, 0), obs(np.nan, np.nan), idle=mask(1, 1)))) == []


def test_new_edition_changes_the_numbers_of_the_next_episodes() -> None:
    made = Made(SAME)
    made.receive(made.session.init(Init(obs(1, 2))))
    ranges = {"gravity": ValueRange.constant(2), "size": ValueRange(5, 6)}
    made.edition = Edition(2, 1, ranges)
    assert made.receive(made.session.step(Step(rewards(1, 2), obs(3, 4)))) == [0, 1]
    assert made.next == [numbers(7, 1, ranges), numbers(9, 1, ranges)]
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 0)))
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 0)))
    found = [(drawn.edition, drawn.of.number) for drawn in made.metrics.drawn if drawn]
    assert found == [(1, 0), (2, 1)], "the first one began before the new edition"


@pytest.mark.parametrize("names", [("gravity",), ("gravity", "size", "wind"), ("gravity", "width"), None])
def test_client_with_earlier_names_must_reconnect(names: tuple[str, ...] | None) -> None:
    """A restarted parameter server has another configuration. Answers keep the values of the welcome's names."""
    made = Made(SAME)
    made.receive(made.session.init(Init(obs(1, 2))))
    assert not made.session.session.must_reconnect
    values = None if names is None else dict.fromkeys(names, ValueRange.constant(1))
    made.edition = None if values is None else Edition(1, 0, values)
    assert made.receive(made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(0, 1)))) == [1]
    assert made.session.session.must_reconnect
    assert made.next == [numbers(7, 1), numbers(9, 2)]
    made.edition = Edition(3, 0, RANGES)
    made.session.step(Step(rewards(1, 2), obs(3, 4)))
    assert not made.session.session.must_reconnect


def test_first_parameters_of_a_restarted_server_need_a_reconnect() -> None:
    editions = [None, Edition(1, 0, RANGES)]
    parameters = EpisodeParameters(lambda: editions[0], SEED, JOINED, ACTORS)
    recorded = RecordedSession(SAME, parameters=parameters)
    del editions[0]
    answer = recorded.session.init(Init(obs(1, 2)))
    assert (answer.parameters_of, answer.parameters, parameters.renamed) == ((), None, True)


def test_partial_episode_has_unknown_numbers() -> None:
    made = Made(SAME)
    made.receive(made.session.init(Init(obs(1, 2), partial=mask(1, 0))))
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 1)))
    assert len(made.metrics.drawn) == 1, "partial episodes are not counted"
    made.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 1)))
    assert [drawn.of for drawn in made.metrics.drawn if drawn] == [
        Draw(SEED, JOINED, 9, 0),
        Draw(SEED, JOINED, 7, 1),
        Draw(SEED, JOINED, 9, 1),
    ]


def test_server_without_parameters() -> None:
    parameters = EpisodeParameters(lambda: None, SEED, JOINED, ACTORS)
    assert (list(parameters.names), parameters.first()) == ([], None)
    recorded = RecordedSession(SAME, parameters=parameters)
    answer = recorded.session.init(Init(obs(1, 2)))
    assert (answer.parameters_of, answer.parameters) == ((), None)
    recorded.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 0)))
    assert recorded.metrics.drawn == [None]


def test_session_without_the_capability_records_no_numbers() -> None:
    recorded = RecordedSession(SAME)
    recorded.session.init(Init(obs(1, 2)))
    recorded.session.step(Step(rewards(1, 2), obs(3, 4), terminated=mask(1, 0)))
    assert recorded.metrics.drawn == [None]


@pytest.mark.parametrize("environments", [1, 3])
def test_first_numbers_are_those_of_each_environment(environments: int) -> None:
    edition = Edition(1, 0, RANGES)
    parameters = EpisodeParameters(lambda: edition, SEED, JOINED, range(environments))
    first = parameters.first()
    assert first is not None
    assert first.reshape(environments, 2).tolist() == [numbers(actor, 0) for actor in range(environments)]
