"""Tests of the client's own metrics: the latencies of answers and pings."""

from collections.abc import Callable

import pytest

from relaax import rlx
from relaax.client import Client
from relaax.client.connection.scalars import ACT, NAMES, PING, WITHOUT_NETWORK, Latency, Scalars
from support.rlx_peer import RlxPeer

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(2)}


def test_report_has_means_since_the_last_one_in_milliseconds():
    latency = Latency(5.0, clock=lambda: 100.0)
    assert [latency.is_due(now) for now in (100.0, 104.9, 105.0)] == [False, False, True]
    for seconds in (0.002, 0.004):
        latency.add(seconds)
    assert latency.report(105.0) == {ACT: pytest.approx(3.0)}
    assert not latency.is_due(109.0)
    assert latency.report(110.0) == {}
    for seconds in (0.001, 0.009, 0.002):
        latency.add_ping(seconds)
    latency.add(0.005)
    report = latency.report(115.0)
    assert report == {ACT: pytest.approx(5.0), PING: pytest.approx(1.0), WITHOUT_NETWORK: pytest.approx(4.0)}
    latency.add(0.001)
    assert latency.report(120.0)[WITHOUT_NETWORK] == 0.0


def test_latency_without_an_interval_is_never_due():
    assert not Latency(None, clock=lambda: 0.0).is_due(1e9)


@pytest.mark.parametrize("interval", [0, -1.0, float("nan")])
def test_invalid_interval_is_refused(interval):
    with pytest.raises(ValueError, match="report_latency"):
        Latency(interval)


def step_until(client: Client, is_done: Callable[[], bool]) -> None:
    client.init([0.0])
    while not is_done():
        client.send(0.0, [1.0])


def test_ping_and_report_are_sent_with_steps():
    with RlxPeer() as peer:
        with Client(peer.address, **SPACES, report_latency=0.02) as client:
            step_until(client, lambda: len(peer.connections) > 0 and len(peer.connections[0].of(rlx.Metrics)) >= 2)
        peer.finish()
    received = peer.connections[0].received
    after = [type(received[i + 1]) for i, message in enumerate(received) if isinstance(message, rlx.Ping)]
    assert len(after) >= 2
    assert set(after) <= {rlx.Step, rlx.Metrics}
    first = dict(peer.connections[0].of(rlx.Metrics)[0].scalars)
    assert set(first) == NAMES
    assert first[PING] > 0
    assert 0 <= first[WITHOUT_NETWORK] <= first[ACT]


def test_connection_shorter_than_the_interval_has_no_report():
    with RlxPeer() as peer:
        with Client(peer.address, **SPACES, report_latency=1e6) as client:
            steps = iter(range(20))
            step_until(client, lambda: next(steps, None) is None)
        peer.finish()
    assert peer.connections[0].of(rlx.Metrics, rlx.Ping) == []


def test_reserved_metric_names_are_refused():
    with pytest.raises(ValueError, match=r"'latency/act_ms' is reserved for the client's own metrics"):
        Scalars(lambda: None).scalar(ACT, 1.0)


def test_own_metrics_are_dropped_if_past_the_limit_of_names():
    scalars = Scalars(lambda: None)
    scalars.set_limits(rlx.Limits(max_metric_names=3))
    scalars.scalar("height", 1.0)
    scalars.add_own({ACT: 1.0, PING: 1.0, WITHOUT_NETWORK: 0.0})
    assert list(scalars.pop().scalars) == [("height", 1.0)]


def test_error_about_too_many_names_mentions_the_clients_own():
    scalars = Scalars(lambda: None)
    scalars.set_limits(rlx.Limits(max_metric_names=4))
    scalars.scalar("a", 1.0)
    with pytest.raises(ValueError, match=r"limit of 4 names, 3 of them for the client's latencies"):
        scalars.scalar("b", 1.0)
    scalars.add_own({ACT: 1.0, PING: 1.0, WITHOUT_NETWORK: 0.0})
    assert len(scalars.pop().scalars) == 4


def test_client_without_latencies_leaves_all_names_to_the_user():
    scalars = Scalars(lambda: None, Latency(None).names)
    scalars.set_limits(rlx.Limits(max_metric_names=4))
    for name in "abcd":
        scalars.scalar(name, 1.0)


def test_scalars_before_the_welcome_are_cut_to_the_limit():
    scalars = Scalars(lambda: None)
    for name in ("a", "b", "c", "a"):
        scalars.scalar(name, 1.0)
    scalars.set_limits(rlx.Limits(max_metric_names=2))
    assert [name for name, _ in scalars.pop().scalars] == ["a", "b", "a"]
