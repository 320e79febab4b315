"""Tests of metrics from the infos of gymnasium's environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from relaax import rlx
from relaax.client import run
from relaax.client.connection.scalars import Scalars
from relaax.client.program.summary import reporter
from support.rlx_peer import RlxPeer


def scalars_of(metrics, infos):
    scalars = Scalars(lambda: None)
    reporter(metrics, scalars)(infos)
    message = scalars.pop()
    return [] if message is None else list(message.scalars)


def test_named_entries_of_one_environment_are_scalars():
    assert scalars_of(["lives", "x.y"], {"lives": 3, "x.y": np.float32(0.5), "other": 1}) == [
        ("lives", 3.0),
        ("x.y", 0.5),
    ]


def test_vector_entry_is_the_mean_over_reporting_environments():
    infos = {"lives": np.array([3, 0, 1]), "_lives": np.array([True, False, True])}
    assert scalars_of(["lives"], infos) == [("lives", 2.0)]


def test_entries_of_final_infos_count():
    infos = {
        "lives": np.array([4.0, 2.0]),
        "_lives": np.array([False, True]),
        "final_info": {"lives": np.array([0.0, 9.0]), "_lives": np.array([True, False])},
    }
    assert scalars_of(["lives"], infos) == [("lives", 1.0)]


def test_missing_entries_send_no_scalars():
    assert scalars_of(["lives"], {}) == []
    assert scalars_of(["lives"], {"lives": np.array([1.0]), "_lives": np.array([False])}) == []
    assert scalars_of(["x"], {"x": float("nan")}) == []
    assert scalars_of(None, {"lives": 1}) == []


def test_function_can_compute_named_scalars():
    assert scalars_of(lambda infos: {"a/b": infos["n"] * 2}, {"n": 3}) == [("a/b", 6.0)]


@pytest.mark.parametrize("metrics", [["fine", ""], ["latency/act_ms"], "lives"])
def test_invalid_metric_names_are_refused_at_once(metrics):
    with pytest.raises(ValueError, match=r"give a name|own|lives"):
        reporter(metrics, None)


def test_entry_that_is_not_a_number_is_refused_by_name():
    with pytest.raises(ValueError, match="'where'.*'home'"):
        scalars_of(["where"], {"where": "home"})


class WithFuel(gymnasium.Wrapper):
    def step(self, action):
        *outcome, infos = self.env.step(action)
        return *outcome, {**infos, "fuel": 7.5}


@pytest.mark.parametrize("count", [None, 2])
def test_metrics_from_infos_reach_the_server(count):
    with RlxPeer() as peer:
        env = (
            WithFuel(gymnasium.make("CartPole-v1"))
            if count is None
            else gymnasium.vector.SyncVectorEnv(
                [lambda: WithFuel(gymnasium.make("CartPole-v1"))] * count, autoreset_mode=AutoresetMode.SAME_STEP
            )
        )
        run(env, peer.address, steps=8, metrics=["fuel"])
        env.close()
        peer.finish()
    sent = [scalar for message in peer.connections[0].of(rlx.Metrics) for scalar in message.scalars]
    assert len(sent) == (8 if count is None else 4)
    assert set(sent) == {("fuel", 7.5)}
