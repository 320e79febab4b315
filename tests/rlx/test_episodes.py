"""Checks of messages after the handshake: leaves, numbers, masks, and the ends of episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.rlx import (
    Actions,
    Autoreset,
    Box,
    Dict,
    Discrete,
    Episode,
    Init,
    LocalProtocolError,
    MultiBinary,
    MultiDiscrete,
    Ping,
    Reset,
    Step,
)
from support.rlx_pair import Pair, assert_refused, batch, make_hello, make_step, playing_pair


def step(pair: Pair, **fields: Any) -> Step:
    return make_step(pair.client.hello, **fields)


def final(pair: Pair) -> list[np.ndarray]:
    hello = pair.client.hello
    assert hello is not None
    return batch(hello.observation_space, hello.environments, 1)


class TestDisabled:
    def test_episodes_end_with_reset(self) -> None:
        pair = playing_pair("disabled")
        pair.step()
        pair.client_sends(Reset(np.array([1.0, 2.0]), np.array([True, False]), final(pair)))
        pair.returns(2, 4)

    @pytest.mark.parametrize("field", ["terminated", "truncated"])
    def test_step_that_ends_an_episode_is_refused(self, field: str) -> None:
        pair = playing_pair("disabled")
        assert_refused(pair, step(pair, **{field: [False, True]}), "environment 1, whose autoreset is DISABLED")

    def test_first_mark_is_refused(self) -> None:
        pair = playing_pair("disabled")
        assert_refused(
            pair,
            step(pair, first=[True, False]),
            "first marks environment 0; the step before (NEXT_STEP) ended the episode of no environment",
        )


class TestSameStep:
    def test_step_ends_one_episode_and_starts_the_next(self) -> None:
        pair = playing_pair("same_step")
        pair.step(terminated=[True, False])
        pair.step(truncated=[False, True], terminated=[True, True], final_observation=final(pair))
        pair.step()

    def test_truncation_without_final_observation_is_refused(self) -> None:
        pair = playing_pair("same_step")
        assert_refused(
            pair, step(pair, truncated=[False, True]), "truncated marks environment 1, and final_observation is missing"
        )

    def test_final_observation_without_end_is_refused(self) -> None:
        pair = playing_pair("same_step")
        assert_refused(pair, step(pair, final_observation=final(pair)), "ends no episode")

    def test_final_observation_is_checked_for_ended_rows_only(self) -> None:
        pair = playing_pair("same_step")
        values = final(pair)
        values[0][0] = np.nan  # the episode of environment 0 does not end
        pair.step(truncated=[False, True], final_observation=values)
        assert_refused(
            pair, step(pair, truncated=[True, False], final_observation=values), "of environment 0 holds NaN"
        )

    def test_first_mark_is_refused(self) -> None:
        pair = playing_pair("same_step")
        pair.step(terminated=[True, True])
        assert_refused(pair, step(pair, first=[True, True]), "first marks environments 0, 1")


def test_final_observation_is_checked_for_same_step_rows_only() -> None:
    pair = Pair()
    pair.play(environments=3, autoreset=(Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.SAME_STEP))
    leaf = np.array([[1, 1], [np.nan, 1], [np.nan, 1]], np.float32)
    ends = {"truncated": [True, True, False], "final_observation": [leaf]}
    pair.step(**ends)
    bad = leaf[[1, 0, 0]]
    assert_refused(
        pair, step(pair, first=[False, True, False], truncated=[True, False, False], final_observation=[bad]), "NaN"
    )


class TestNextStep:
    @pytest.mark.parametrize("field", ["terminated", "truncated"])
    def test_step_after_the_end_marks_first(self, field: str) -> None:
        pair = playing_pair("next_step")
        pair.step(**{field: [False, True]})
        pair.step(first=[False, True])
        pair.step(terminated=[True, True])
        pair.step(first=[True, True])
        pair.step()

    @pytest.mark.parametrize("mask", [None, [True, False], [True, True]])
    def test_first_must_mark_exactly_the_ended_episodes(self, mask: Any) -> None:
        pair = playing_pair("next_step")
        pair.step(terminated=[False, True])
        assert_refused(pair, step(pair, first=mask), "the step before (NEXT_STEP) ended the episode of environment 1")

    def test_second_first_mark_is_refused(self) -> None:
        pair = playing_pair("next_step")
        pair.step(terminated=[False, True])
        pair.step(first=[False, True])
        assert_refused(pair, step(pair, first=[False, True]), "ended the episode of no environment")

    def test_episode_that_starts_and_ends_in_one_step_is_refused(self) -> None:
        pair = playing_pair("next_step")
        pair.step(terminated=[False, True])
        assert_refused(
            pair, step(pair, first=[False, True], truncated=[False, True]), "no episode starts and ends in one step"
        )

    def test_next_step_final_observation_field_is_refused(self) -> None:
        pair = playing_pair("next_step")
        assert_refused(
            pair, step(pair, truncated=[True, False], final_observation=final(pair)), "ends no SAME_STEP episode"
        )

    def test_reset_between_episodes_must_not_truncate(self) -> None:
        pair = playing_pair("next_step")
        pair.step(truncated=[False, True])
        other_pair = playing_pair("next_step")
        other_pair.step(truncated=[False, True])
        cut = Reset(np.zeros(2), np.array([False, True]), final(pair))
        assert_refused(other_pair, cut, "truncated marks environment 1, whose episode ended before")
        pair.client_sends(Reset(np.zeros(2), np.array([True, False]), final(pair)))
        pair.returns(1, 0)
        pair.client_sends(Init(batch(make_hello().observation_space, 2)))
        pair.act()
        assert_refused(pair, step(pair, first=[False, True]), "ended the episode of no environment")

    def test_ping_after_refused_step_does_not_apply_its_marks(self) -> None:
        pair = playing_pair("next_step")
        bad = step(pair, terminated=[True, False], episodes=[Episode(0, 1.0, 1)])
        with pytest.raises(LocalProtocolError, match="did not say reports_episodes"):
            pair.client.send(bad)
        pair.client_sends(Ping(1))
        pair.step()

    def test_refused_step_does_not_change_the_ended_episodes(self) -> None:
        pair = playing_pair("next_step", reports_episodes=True)
        pair.step(terminated=[False, True])
        bad = step(pair, first=[False, True], terminated=[True, False], episodes=[Episode(9, 1.0, 1)])
        with pytest.raises(LocalProtocolError, match="environment is 9; at most 1 is allowed"):
            pair.client.send(bad)
        pair.step(first=[False, True])


def test_autoreset_modes_may_differ_between_environments() -> None:
    pair = Pair()
    pair.play(environments=3, autoreset=(Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.DISABLED))
    pair.step(truncated=[True, True, False], final_observation=final(pair))
    pair.step(terminated=[True, False, False], first=[False, True, False])
    pair.step(terminated=[False, True, False])
    assert_refused(
        pair,
        step(pair, terminated=[False, False, True], first=[False, True, False]),
        "environment 2, whose autoreset is DISABLED",
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"reward": np.array([0.0, np.nan])}, "reward of environment 1 is nan"),
        ({"reward": np.array([-np.inf, 0.0])}, "reward of environment 0 is -inf"),
        ({"reward": np.zeros(3)}, "reward has 3 elements for 2 environments"),
        ({"terminated": [True]}, "terminated has 1 element for 2 environments"),
        ({"reward": np.zeros(0)}, "reward is missing; it must have one element for each environment"),
        ({"observation": []}, "observation is missing; the space has 1 leaf"),
        ({"observation": [np.zeros((2, 3), np.float32)]}, "observation has shape (3,), the space is (2,)"),
        (
            {"observation": [np.zeros((3, 2), np.float32)]},
            "observation has shape (3, 2); (2, 2) is needed, whose first axis counts the environments",
        ),
        ({"observation": [np.zeros((2, 2))]}, "observation is float64, the space is float32"),
        (
            {"observation": [np.array([[0, 0], [0, np.nan]], np.float32)]},
            "observation of environment 1 holds NaN, not a value of Box(float32, [2])",
        ),
        ({"observation": [np.array([[np.inf, 0], [0, 0]], np.float32)]}, "environment 0 holds an infinite number"),
        ({"episodes": [Episode(0, 1.0, 1)]}, "did not say reports_episodes"),
    ],
)
def test_invalid_value_error_names_the_field(fields: dict[str, Any], sentence: str) -> None:
    pair = playing_pair("same_step")
    assert_refused(pair, step(pair, **fields), sentence)


@pytest.mark.parametrize(
    ("episodes", "sentence"),
    [
        ([Episode(2, 1.0, 1)], "episodes[0].environment is 2; at most 1 is allowed"),
        ([Episode(0, 1.0, 1), Episode(0, 1.0, 1)], "names an environment twice"),
        ([Episode(0, np.inf, 1)], "episodes[0].episode_return is inf; a number from -1e+30 to 1e+30 is allowed"),
        ([Episode(0, 1.0, 0)], "episodes[0].length is 0; at least 1 is needed"),
    ],
)
def test_reported_episodes_are_checked(episodes: list[Episode], sentence: str) -> None:
    pair = playing_pair("same_step", reports_episodes=True)
    pair.step(episodes=(Episode(1, -2.5, 7),))
    assert_refused(pair, step(pair, episodes=episodes), sentence)


def test_invalid_leaf_error_names_its_path() -> None:
    pair = playing_pair("disabled", 1, observation_space=Dict({"camera": MultiBinary(2), "arm": Box(shape=(1,))}))
    bad = [np.zeros((1, 1), np.float32), np.full((1, 2), 2, np.int8)]
    assert_refused(pair, step(pair, observation=bad), "observation['camera'] holds 2, not a value of MultiBinary")


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (Discrete(3), [0, 2], [0, 3]),
        (Discrete(3), [0, 2], [-1, 0]),
        (Discrete(3, start=-1), [-1, 1], [0, 2]),
        (Discrete(3, start=2**63 - 3), [2**63 - 3, 2**63 - 1], [-(2**63), 2**63 - 1]),
        (MultiDiscrete([2, 3]), [[1, 2], [0, 0]], [[0, 0], [2, 2]]),
        (MultiBinary(1), [[0], [1]], [[0], [-1]]),
        (Box(-1, 1, (1,)), [[-1], [1]], [[0], [1.0000001]]),
        (Box(-1, 1, (1,)), [[-1], [1]], [[-1.0000001], [0]]),
        (Box(-5, 5, (), np.int8), [-5, 5], [0, -6]),
        (Box([-1, 0], [1, np.inf]), [[-1, 0], [1, 1e30]], [[0, 0], [0, np.inf]]),
        (Box(0, 10, (), np.uint8), [0, 10], [11, 0]),
        (Box(-5, 5, (), np.int64), [-5, 5], [2**62, 0]),
        (Box(shape=(), dtype=np.bool_), [0, 1], None),
        (Box(shape=(), dtype=np.uint64), [0, 2**64 - 1], None),
    ],
)
def test_action_outside_its_space_is_refused(space: Any, good: Any, bad: Any) -> None:
    pair = Pair()
    pair.play(environments=2, action_space=space)
    pair.client_sends(step(pair))
    if bad is not None:
        with pytest.raises(LocalProtocolError, match="action of environment"):
            pair.server.send(Actions([np.array(bad, space.dtype)]))
    pair.server_sends(Actions([np.array(good, space.dtype)]))


def test_observation_may_exceed_its_box_but_not_its_discrete() -> None:
    pair = playing_pair("disabled", 1, observation_space=Box(-1, 1, (1,)))
    pair.step(observation=[np.full((1, 1), 7, np.float32)])
    pair = playing_pair("disabled", 1, observation_space=Discrete(2))
    assert_refused(pair, step(pair, observation=[np.array([2])]), "holds 2, not a value of Discrete(2)")


def test_bool_array_with_other_bytes_is_refused() -> None:
    pair = playing_pair("disabled", 1, observation_space=Box(shape=(2,), dtype=np.bool_))
    assert_refused(
        pair, step(pair, observation=[np.array([[1, 2]], np.uint8).view(np.bool_)]), "holds 2, not a value of Box(bool"
    )


def test_all_false_mask_is_received_as_none() -> None:
    pair = playing_pair("disabled", 1)
    message = Step(np.zeros(1), batch(make_hello().observation_space, 1), terminated=np.zeros(1, np.bool_))
    pair.server.receive_data(pair.client.send(message))
    received = pair.server.next_event()
    assert isinstance(received, Step)
    assert received.terminated is None
