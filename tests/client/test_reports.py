"""Metrics from the infos of gymnasium's environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from relaax import rlx
from relaax.client import run
from relaax.client.connection.scalars import Scalars
from relaax.client.program.summary import reporter
from support.rlx_peer import RlxPeer


def noted(reports, infos):
    scalars = Scalars(lambda: None)
    reporter(reports, scalars)(infos)
    gathered = scalars.pop()
    return [] if gathered is None else list(gathered.scalars)


def test_named_entries_of_one_environment():
    assert noted(["lives", "x.y"], {"lives": 3, "x.y": np.float32(0.5), "other": 1}) == [("lives", 3.0), ("x.y", 0.5)]


def test_the_mean_over_those_of_a_vector_that_say_it():
    infos = {"lives": np.array([3, 0, 1]), "_lives": np.array([True, False, True])}
    assert noted(["lives"], infos) == [("lives", 2.0)]


def test_what_an_episode_said_at_its_end_counts():
    infos = {
        "lives": np.array([4.0, 2.0]),
        "_lives": np.array([False, True]),
        "final_info": {"lives": np.array([0.0, 9.0]), "_lives": np.array([True, False])},
    }
    assert noted(["lives"], infos) == [("lives", 1.0)]


def test_where_nothing_is_said_nothing_is_sent():
    assert noted(["lives"], {}) == []
    assert noted(["lives"], {"lives": np.array([1.0]), "_lives": np.array([False])}) == []
    assert noted(["x"], {"x": float("nan")}) == []
    assert noted(None, {"lives": 1}) == []


def test_a_function_may_name_and_count_as_it_likes():
    assert noted(lambda infos: {"a/b": infos["n"] * 2}, {"n": 3}) == [("a/b", 6.0)]


@pytest.mark.parametrize("reports", [["fine", ""], ["latency/act_ms"], "lives"])
def test_bad_names_are_refused_at_once(reports):
    with pytest.raises(ValueError, match=r"give a name|own|lives"):
        reporter(reports, None)


def test_what_is_no_number_is_refused_by_its_name():
    with pytest.raises(ValueError, match="'where'.*'home'"):
        noted(["where"], {"where": "home"})


class Telling(gymnasium.Wrapper):
    def step(self, action):
        *outcome, infos = self.env.step(action)
        return *outcome, {**infos, "fuel": 7.5}


@pytest.mark.parametrize("count", [None, 2])
def test_they_reach_the_server(count):
    with RlxPeer() as peer:
        env = (
            Telling(gymnasium.make("CartPole-v1"))
            if count is None
            else gymnasium.vector.SyncVectorEnv(
                [lambda: Telling(gymnasium.make("CartPole-v1"))] * count, autoreset_mode=AutoresetMode.SAME_STEP
            )
        )
        run(env, peer.address, steps=8, metrics=["fuel"])
        env.close()
        peer.finish()
    sent = [scalar for message in peer.talks[0].of(rlx.Metrics) for scalar in message.scalars]
    assert len(sent) == (8 if count is None else 4)
    assert set(sent) == {("fuel", 7.5)}
