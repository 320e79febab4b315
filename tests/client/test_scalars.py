import pytest

from relaax import rlx
from relaax.client import Client
from relaax.client.connection.scalars import MAX_PENDING_SCALARS, X_IGNORED, Scalars
from support.rlx_peer import RlxPeer

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(2)}


def test_scalars_are_sent_before_the_next_message():
    with RlxPeer() as peer, Client(peer.address, **SPACES) as client:
        client.metrics().scalar("early", 1)
        client.init([0.0])
        client.metrics().scalar("speed/x", 1.5)
        client.metrics().scalar("speed/x", 2.5)
        client.send(0.0, [1.0])
        kinds = [type(message) for message in peer.connections[0].received]
    assert kinds == [rlx.Hello, rlx.Metrics, rlx.Init, rlx.Metrics, rlx.Step]
    early, late = peer.connections[0].of(rlx.Metrics)
    assert list(early.scalars) == [("early", 1.0)]
    assert list(late.scalars) == [("speed/x", 1.5), ("speed/x", 2.5)]


def test_pending_scalars_are_sent_before_bye():
    with RlxPeer() as peer:
        with Client(peer.address, **SPACES) as client:
            client.init([0.0])
            client.metrics().scalar("last", 3.0)
        peer.finish()
    assert [type(message) for message in peer.connections[0].received[-2:]] == [rlx.Metrics, rlx.Bye]


def test_many_scalars_are_sent_without_waiting_for_a_message():
    with RlxPeer() as peer:
        with Client(peer.address, **SPACES) as client:
            client.init([0.0])
            for value in range(MAX_PENDING_SCALARS + 1):
                client.metrics().scalar("many", value)
        peer.finish()
    first, rest = peer.connections[0].of(rlx.Metrics)
    assert len(first.scalars) == MAX_PENDING_SCALARS
    assert list(rest.scalars) == [("many", float(MAX_PENDING_SCALARS))]


def test_newest_scalars_are_kept_without_a_connection():
    scalars = Scalars(lambda: None)
    for value in range(MAX_PENDING_SCALARS + 10):
        scalars.scalar("x", value)
    message = scalars.pop()
    assert [value for _, value in message.scalars] == [float(v) for v in range(10, MAX_PENDING_SCALARS + 10)]
    assert scalars.pop() is None


def test_scalar_names_are_normalised():
    scalars = Scalars(lambda: None)
    for name in ("act latency on client", "act_latency_on_client", "1st", "é", "/a", "x\n"):
        scalars.scalar(name, 1.0)
    names = [name for name, _ in scalars.pop().scalars]
    assert names == ["act_latency_on_client", "act_latency_on_client", "1st", "_", "_a", "x_"]


def test_empty_name_is_refused():
    with pytest.raises(ValueError, match="is empty: give a name"):
        Scalars(lambda: None).scalar("", 1.0)


def test_spellings_of_one_name_count_once_towards_the_limit():
    scalars = Scalars(lambda: None, own_names=())
    scalars.set_limits(rlx.Limits(max_metric_names=1))
    for name in ("a b", "a_b", "a\tb", "a b"):
        scalars.scalar(name, 1.0)
    with pytest.raises(ValueError, match="1 names"):
        scalars.scalar("a c", 1.0)


def test_argument_x_is_ignored_with_one_warning(caplog):
    scalars = Scalars(lambda: None)
    for x in (None, 7, 8):
        scalars.scalar("act latency on client", 0.5, x=x)
    assert len(scalars.pop().scalars) == 3
    assert [record.message for record in caplog.records] == [X_IGNORED]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2e30])
def test_scalar_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match="only numbers from"):
        Scalars(lambda: None).scalar("x", value)


def test_scalars_past_the_server_limits_are_refused():
    scalars = Scalars(lambda: None)
    scalars.scalar("much-too-long", 1.0)
    scalars.set_limits(rlx.Limits(max_metric_name_bytes=4, max_metric_names=2))
    assert scalars.pop() is None
    with pytest.raises(ValueError, match="longer than the limit of 4"):
        scalars.scalar("abcde", 1.0)
    scalars.scalar("a", 1.0)
    scalars.scalar("b", 1.0)
    scalars.scalar("a", 2.0)
    with pytest.raises(ValueError, match="2 names"):
        scalars.scalar("c", 1.0)
