"""What was agreed, after the handshake: leaves, numbers, masks, and both habits of ending episodes."""

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
    RemoteProtocolError,
    Reset,
    Sender,
    Step,
)
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from support.rlx_pair import AUTORESETS, Pair, batch, make_hello, make_step


def refused(pair: Pair, message: Any, sentence: str) -> None:
    """The client does not send it, and the server does not take it, for the same reason."""
    with pytest.raises(LocalProtocolError) as local:
        pair.client.send(message)
    pair.server.receive_data(frame(codec_named("protobuf").encode(message, Sender.CLIENT), 2**20))
    with pytest.raises(RemoteProtocolError) as remote:
        pair.server.next_event()
    assert sentence in local.value.message
    assert remote.value.message == local.value.message
    assert remote.value.code is local.value.code


def playing(autoreset: str, environments: int = 2, **fields: Any) -> Pair:
    pair = Pair()
    pair.play(environments=environments, autoreset=AUTORESETS[autoreset], **fields)
    return pair


def step(pair: Pair, **fields: Any) -> Step:
    return make_step(pair.client.hello, **fields)


def final(pair: Pair) -> list[np.ndarray]:
    hello = pair.client.hello
    assert hello is not None
    return batch(hello.observation_space, hello.environments, 1)


class TestDisabled:
    def test_episodes_end_with_reset(self) -> None:
        pair = playing("disabled")
        pair.step()
        pair.client_says(Reset(np.array([1.0, 2.0]), np.array([True, False]), final(pair)))
        pair.returns(2, 4)

    @pytest.mark.parametrize("field", ["terminated", "truncated"])
    def test_a_step_ends_nothing(self, field: str) -> None:
        pair = playing("disabled")
        refused(pair, step(pair, **{field: [False, True]}), "environment 1, whose autoreset is DISABLED")

    def test_nothing_is_first(self) -> None:
        pair = playing("disabled")
        refused(
            pair,
            step(pair, first=[True, False]),
            "first marks environment 0; the step before (NEXT_STEP) ended the episode of no environment",
        )


class TestSameStep:
    def test_episodes_end_beside_the_next_ones_start(self) -> None:
        pair = playing("same_step")
        pair.step(terminated=[True, False])
        pair.step(truncated=[False, True], terminated=[True, True], final_observation=final(pair))
        pair.step()

    def test_a_cut_episode_needs_its_final_observation(self) -> None:
        pair = playing("same_step")
        refused(
            pair, step(pair, truncated=[False, True]), "truncated marks environment 1, and final_observation is missing"
        )

    def test_a_final_observation_needs_an_end(self) -> None:
        pair = playing("same_step")
        refused(pair, step(pair, final_observation=final(pair)), "ends no episode")

    def test_the_final_observation_matters_where_an_episode_ended(self) -> None:
        pair = playing("same_step")
        values = final(pair)
        values[0][0] = np.nan  # environment 0 goes on
        pair.step(truncated=[False, True], final_observation=values)
        refused(pair, step(pair, truncated=[True, False], final_observation=values), "of environment 0 holds NaN")

    def test_nothing_is_first(self) -> None:
        pair = playing("same_step")
        pair.step(terminated=[True, True])
        refused(pair, step(pair, first=[True, True]), "first marks environments 0, 1")


def test_a_final_observation_counts_where_a_same_step_episode_ended_and_nowhere_else() -> None:
    pair = Pair()
    pair.play(environments=3, autoreset=(Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.SAME_STEP))
    leaf = np.array([[1, 1], [np.nan, 1], [np.nan, 1]], np.float32)
    ends = {"truncated": [True, True, False], "final_observation": [leaf]}
    pair.step(**ends)
    bad = leaf[[1, 0, 0]]
    refused(
        pair, step(pair, first=[False, True, False], truncated=[True, False, False], final_observation=[bad]), "NaN"
    )


class TestNextStep:
    @pytest.mark.parametrize("field", ["terminated", "truncated"])
    def test_the_step_after_the_end_is_the_first(self, field: str) -> None:
        pair = playing("next_step")
        pair.step(**{field: [False, True]})
        pair.step(first=[False, True])
        pair.step(terminated=[True, True])
        pair.step(first=[True, True])
        pair.step()

    @pytest.mark.parametrize("mask", [None, [True, False], [True, True]])
    def test_first_marks_exactly_what_ended(self, mask: Any) -> None:
        pair = playing("next_step")
        pair.step(terminated=[False, True])
        refused(pair, step(pair, first=mask), "the step before (NEXT_STEP) ended the episode of environment 1")

    def test_first_comes_once(self) -> None:
        pair = playing("next_step")
        pair.step(terminated=[False, True])
        pair.step(first=[False, True])
        refused(pair, step(pair, first=[False, True]), "ended the episode of no environment")

    def test_a_start_is_no_end(self) -> None:
        pair = playing("next_step")
        pair.step(terminated=[False, True])
        refused(
            pair, step(pair, first=[False, True], truncated=[False, True]), "no episode starts and ends in one step"
        )

    def test_the_final_observation_is_the_observation(self) -> None:
        pair = playing("next_step")
        refused(pair, step(pair, truncated=[True, False], final_observation=final(pair)), "ends no SAME_STEP episode")

    def test_a_reset_between_two_episodes(self) -> None:
        pair = playing("next_step")
        pair.step(truncated=[False, True])
        refused_pair = playing("next_step")
        refused_pair.step(truncated=[False, True])
        cut = Reset(np.zeros(2), np.array([False, True]), final(pair))
        refused(refused_pair, cut, "truncated marks environment 1, whose episode ended before")
        pair.client_says(Reset(np.zeros(2), np.array([True, False]), final(pair)))
        pair.returns(1, 0)
        pair.client_says(Init(batch(make_hello().observation_space, 2)))
        pair.act()
        refused(pair, step(pair, first=[False, True]), "ended the episode of no environment")

    def test_a_ping_after_a_refused_step_leaves_the_marks_as_they_were(self) -> None:
        pair = playing("next_step")
        bad = step(pair, terminated=[True, False], episodes=[Episode(0, 1.0, 1)])
        with pytest.raises(LocalProtocolError, match="did not say reports_episodes"):
            pair.client.send(bad)
        pair.client_says(Ping(1))
        pair.step()

    def test_a_refused_step_leaves_the_marks_as_they_were(self) -> None:
        pair = playing("next_step", reports_episodes=True)
        pair.step(terminated=[False, True])
        bad = step(pair, first=[False, True], terminated=[True, False], episodes=[Episode(9, 1.0, 1)])
        with pytest.raises(LocalProtocolError, match="environment is 9; at most 1 is allowed"):
            pair.client.send(bad)
        pair.step(first=[False, True])


def test_habits_may_differ_between_environments() -> None:
    pair = Pair()
    pair.play(environments=3, autoreset=(Autoreset.SAME_STEP, Autoreset.NEXT_STEP, Autoreset.DISABLED))
    pair.step(truncated=[True, True, False], final_observation=final(pair))
    pair.step(terminated=[True, False, False], first=[False, True, False])
    pair.step(terminated=[False, True, False])
    refused(
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
        ({"reward": np.zeros(0)}, "reward is missing; it has one element for each environment"),
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
def test_values_that_do_not_fit_are_refused_by_name(fields: dict[str, Any], sentence: str) -> None:
    pair = playing("same_step")
    refused(pair, step(pair, **fields), sentence)


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
    pair = playing("same_step", reports_episodes=True)
    pair.step(episodes=(Episode(1, -2.5, 7),))
    refused(pair, step(pair, episodes=episodes), sentence)


def test_leaves_are_named_by_their_path() -> None:
    pair = playing("disabled", 1, observation_space=Dict({"camera": MultiBinary(2), "arm": Box(shape=(1,))}))
    bad = [np.zeros((1, 1), np.float32), np.full((1, 2), 2, np.int8)]
    refused(pair, step(pair, observation=bad), "observation['camera'] holds 2, not a value of MultiBinary")


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
def test_actions_are_held_to_their_space(space: Any, good: Any, bad: Any) -> None:
    pair = Pair()
    pair.play(environments=2, action_space=space)
    pair.client_says(step(pair))
    if bad is not None:
        with pytest.raises(LocalProtocolError, match="action of environment"):
            pair.server.send(Actions([np.array(bad, space.dtype)]))
    pair.server_says(Actions([np.array(good, space.dtype)]))


def test_observations_may_leave_their_box_but_not_their_choices() -> None:
    pair = playing("disabled", 1, observation_space=Box(-1, 1, (1,)))
    pair.step(observation=[np.full((1, 1), 7, np.float32)])
    pair = playing("disabled", 1, observation_space=Discrete(2))
    refused(pair, step(pair, observation=[np.array([2])]), "holds 2, not a value of Discrete(2)")


def test_a_bool_array_of_other_bytes_is_refused() -> None:
    pair = playing("disabled", 1, observation_space=Box(shape=(2,), dtype=np.bool_))
    refused(
        pair, step(pair, observation=[np.array([[1, 2]], np.uint8).view(np.bool_)]), "holds 2, not a value of Box(bool"
    )


def test_a_mask_that_says_nothing_is_as_none() -> None:
    pair = playing("disabled", 1)
    message = Step(np.zeros(1), batch(make_hello().observation_space, 1), terminated=np.zeros(1, np.bool_))
    pair.server.receive_data(pair.client.send(message))
    understood = pair.server.next_event()
    assert isinstance(understood, Step)
    assert understood.terminated is None
