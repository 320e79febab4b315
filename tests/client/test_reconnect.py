import logging
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Failure
from relaax.rlx import ErrorCode
from support.rlx_peer import PATIENCE, PeerConnection, RlxPeer, refuse, serve
from support.unused_address import unused_address

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(100)}


def client_of(peer, **settings):
    return Client(peer.address, **{"retry_seconds": 10.0} | SPACES | settings)


def echo(message, conn):
    """Return the observed number as the action."""
    return [message.observation[0][:, 0].astype(np.int64)]


def echoing(script):
    def wrapped(conn: PeerConnection) -> None:
        conn.policy = echo
        script(conn)

    return wrapped


serve_echo = echoing(serve)


def lose(close_connection, after=2):
    """Welcome the client, answer `after` messages, read another one, and end the connection by `close_connection`."""

    @echoing
    def script(conn: PeerConnection) -> None:
        conn.welcome(session_id="first")
        for _ in range(after):
            conn.answer()
        conn.receive()
        close_connection(conn)

    return script


def error(code, retry_after=0.0):
    return lambda conn: conn.fail(code, "try later", retry_after)


ENDS = {
    "half-close": PeerConnection.close,
    "reset": PeerConnection.kill,
    "bye": lambda conn: (conn.send(rlx.Bye("restart")), conn.close()),
    "rebalancing": error(ErrorCode.REBALANCING),
    "unavailable": error(ErrorCode.UNAVAILABLE),
    "timeout": error(ErrorCode.TIMEOUT),
    "overloaded": error(ErrorCode.OVERLOADED),
    "garbage": lambda conn: (conn.socket.sendall(b"\xff" * 64), conn.close()),
}


@pytest.mark.parametrize("kind", ENDS)
def test_interrupted_episode_continues_on_a_new_connection(kind):
    with RlxPeer(lose(ENDS[kind]), serve_echo) as peer, client_of(peer) as client:
        assert client.init([1.0]) == 1
        assert client.send(1.0, [2.0]) == 2
        assert client.send(10.0, [3.0]) == 3  # sent on the first connection, which is lost, and answered by the second
        assert client.send(100.0, [4.0]) == 4
        assert client.reset(1000.0) == 1111.0  # the return of the whole episode, also of steps on the first connection
        client.init([5.0])
        assert client.reset(2.0) == 2.0
    _, second = peer.connections
    assert second.hello.session_id == "first"
    inits = second.of(rlx.Init)
    assert [init.observation[0].tolist() for init in inits] == [[[3.0]], [[5.0]]]
    assert inits[0].partial.tolist() == [True]
    assert inits[1].partial is None
    assert [step.observation[0].tolist() for step in second.of(rlx.Step)] == [[[4.0]]]


def test_return_of_a_lost_reset_is_summed_by_the_client():
    with RlxPeer(lose(PeerConnection.kill), serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        client.send(1.0, [2.0])
        assert client.reset(10.0) == 11.0
        assert client.init([3.0]) == 3
    (init,) = peer.connections[1].of(rlx.Init)
    assert init.partial is None  # the episode begins on this connection


def test_connection_lost_at_the_first_init_is_replaced():
    with RlxPeer(lose(PeerConnection.kill, after=0), serve_echo) as peer, client_of(peer) as client:
        assert client.init([1.0]) == 1
    (init,) = peer.connections[1].of(rlx.Init)
    assert init.partial is None


def test_connection_lost_between_messages_is_noticed_at_the_next():
    closed = threading.Event()

    @echoing
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.fail(ErrorCode.REBALANCING, "elsewhere", retry_after=0.3)
        closed.set()

    with RlxPeer(script, serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        start = time.monotonic()
        assert client.send(1.0, [2.0]) == 2
        assert time.monotonic() - start >= 0.3  # the error was read, although the connection was already closed
        assert closed.wait(PATIENCE)


def test_last_error_of_a_closed_connection_is_read():
    closed = threading.Event()

    @echoing
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.send(rlx.Error(ErrorCode.INVALID_VALUE, "that was too much"))
        conn.socket.close()
        closed.set()

    with RlxPeer(script, serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        assert closed.wait(PATIENCE)
        # The peer answers with a TCP reset, so the next write fails.
        client._session._wire.send(rlx.Metrics([("x", 1.0)]))
        with pytest.raises(Failure, match="that was too much"):
            client.send(1.0, [2.0])
        assert len(peer.connections) == 1


def test_several_connections_can_be_lost_in_one_episode():
    losses = [lose(PeerConnection.kill, after=1) for _ in range(4)]
    with RlxPeer(*losses, serve_echo) as peer, client_of(peer) as client:
        client.init([0.0])
        for t in range(1, 6):
            assert client.send(1.0, [float(t)]) == t
        assert client.reset(1.0) == 6.0
    assert len(peer.connections) == 5


def test_overloaded_server_is_retried_after_the_requested_wait():
    refused = refuse(ErrorCode.OVERLOADED, "no room", retry_after=0.2)
    with RlxPeer(refused, refused, serve_echo) as peer, client_of(peer) as client:
        start = time.monotonic()
        assert client.init([1.0]) == 1
        assert time.monotonic() - start >= 0.4
        assert [type(message) for message in peer.connections[2].received] == [rlx.Hello, rlx.Init]
    assert peer.connections[2].of(rlx.Init)[0].partial is None


def test_wrong_token_after_a_reconnect_fails_at_once():
    with (
        RlxPeer(lose(PeerConnection.kill), refuse(ErrorCode.UNAUTHENTICATED, "wrong token"), serve_echo) as peer,
        client_of(peer) as client,
    ):
        client.init([1.0])
        client.send(1.0, [2.0])
        with pytest.raises(Failure, match="wrong token"):
            client.send(1.0, [3.0])
        assert len(peer.connections) == 2


def test_client_gives_up_after_retry_seconds_with_the_reason():
    with RlxPeer(refuse(ErrorCode.OVERLOADED, "no room for another worker")) as peer:
        start = time.monotonic()
        with client_of(peer, retry_seconds=0.5) as client, pytest.raises(Failure, match=r"no room.*0\.5 s") as failure:
            client.init([1.0])
        assert 0.5 <= time.monotonic() - start < 60
        assert failure.value.code is ErrorCode.OVERLOADED
        assert len(peer.connections) >= 2  # the last attempt is made at the end of the time


def test_retry_seconds_count_from_the_last_answer():
    pause = threading.Event()

    def kill_later(conn: PeerConnection) -> None:
        pause.wait(1.2)
        conn.kill()

    with RlxPeer(lose(PeerConnection.kill), lose(kill_later), serve_echo) as peer:
        with client_of(peer, retry_seconds=1.0) as client:
            client.init([1.0])
            for t in range(2, 6):
                assert client.send(1.0, [float(t)]) == t
        assert len(peer.connections) == 3


def test_welcome_alone_does_not_reset_the_retry_time():
    with RlxPeer(lose(error(ErrorCode.UNAVAILABLE), after=0)) as peer:
        start = time.monotonic()
        with client_of(peer, retry_seconds=0.5) as client, pytest.raises(Failure, match="try later"):
            client.init([1.0])
        assert time.monotonic() - start < 60


def test_client_waits_for_a_server_that_starts_later():
    class Starter(logging.Handler):
        """Starts the server once the client has failed to reach it."""

        peer = None

        def emit(self, record):
            if self.peer is None and "cannot connect" in record.getMessage():
                stack.close()
                self.peer = RlxPeer(serve_echo, port=int(address.rpartition(":")[2]))

    stack = ExitStack()
    address = stack.enter_context(unused_address())
    starter = Starter(logging.WARNING)
    logging.getLogger("relaax.client").addHandler(starter)
    try:
        with stack, Client(address, retry_seconds=20.0, **SPACES) as client:
            assert client.init([1.0]) == 1
    finally:
        logging.getLogger("relaax.client").removeHandler(starter)
        if starter.peer is not None:
            starter.peer.close()


def test_refused_connection_is_reported_with_the_address():
    with (
        unused_address() as address,
        Client(address, retry_seconds=0.0, **SPACES) as client,
        pytest.raises(Failure, match=f"connect to {address}"),
    ):
        client.connect()


def test_unknown_host_is_named():
    with (
        Client("no.such.host.invalid:7001", retry_seconds=0.0, **SPACES) as client,
        pytest.raises(Failure, match=r"cannot find the host 'no\.such\.host\.invalid'"),
    ):
        client.connect()


def test_invalid_host_name_is_refused_at_once():
    with Client("a..b:7001", **SPACES) as client, pytest.raises(Failure, match=r"'a\.\.b'"):
        client.connect()


def test_silent_server_is_replaced_after_the_response_timeout():
    def silent(conn: PeerConnection) -> None:
        conn.policy = echo
        conn.welcome()
        conn.answer()
        conn.receive()
        conn.receive()  # until the client disconnects

    with RlxPeer(silent, serve_echo) as peer, client_of(peer, response_timeout=1.5) as client:
        client.init([1.0])
        assert client.send(1.0, [2.0]) == 2
    assert len(peer.connections) == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/client")
def test_slow_server_that_sends_pings_is_waited_for():
    pause = threading.Event()

    def slow(conn: PeerConnection) -> None:
        conn.welcome()
        message = conn.expect(rlx.Init)
        for nonce in range(10):
            pause.wait(0.25)
            conn.send(rlx.Ping(nonce))
        conn.send(rlx.Actions(echo(message, conn)))
        while True:
            conn.receive()

    with RlxPeer(slow) as peer:
        with client_of(peer, response_timeout=2.25) as client:
            assert client.init([7.0]) == 7
        peer.finish()
        assert len(list(peer.received(rlx.Pong))) == 10
        assert len(peer.connections) == 1


def test_flush_into_a_lost_connection_does_not_end_the_episode():
    closed = threading.Event()

    @echoing
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.kill()
        closed.set()

    with RlxPeer(script, serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        assert closed.wait(PATIENCE)
        client.metrics().scalar("x", 1.0)
        client.metrics().flush()
        client.metrics().flush()
        assert client.send(1.0, [2.0]) == 2
        assert client.ping() > 0
    assert peer.connections[1].of(rlx.Init)[0].partial.tolist() == [True]


def test_connection_lost_at_a_ping_is_replaced():
    with RlxPeer(lose(PeerConnection.kill, after=1), serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        assert client.ping() > 0
        assert client.send(3.0, [2.0]) == 2
        assert client.reset(4.0) == 7.0
    assert peer.connections[1].of(rlx.Init)[0].observation[0].tolist() == [[2.0]]


def test_client_sums_returns_only_of_interrupted_episodes():
    """The client returns its own sum for an interrupted episode, and the server's return otherwise."""

    @echoing
    def fixed_returns(conn):
        conn.welcome()
        while True:
            message = conn.expect((rlx.Init, rlx.Step, rlx.Reset))
            over = isinstance(message, rlx.Reset)
            conn.send(rlx.EpisodeReturns(np.array([77.0])) if over else rlx.Actions(echo(message, conn)))

    with RlxPeer(lose(PeerConnection.kill, after=1), fixed_returns) as peer, client_of(peer) as client:
        returns = []
        for _ in range(2):
            client.init([0.0])
            client.send(1.0, [1.0])
            client.send(1.0, [2.0])
            returns.append(client.reset(1.0))
    assert returns == [3.0, 77.0]


def test_newest_session_id_is_sent():
    """A server may assign another session id than the client sent."""

    def lose_session(session_id):
        @echoing
        def script(conn):
            conn.welcome(session_id=session_id)
            conn.answer()
            conn.receive()
            conn.kill()

        return script

    with (
        RlxPeer(lose_session("first"), lose_session("second"), lose_session("third"), serve_echo) as peer,
        client_of(peer) as client,
    ):
        client.init([0.0])
        for _ in range(3):
            client.send(1.0, [1.0])
        assert [hello.session_id for hello in peer.received(rlx.Hello)] == ["", "first", "second", "third"]


def test_unrequested_actions_do_not_answer_the_next_step():
    @echoing
    def answer_twice(conn):
        conn.welcome()
        message = conn.expect(rlx.Init)
        conn.socket.sendall(2 * conn.connection.send(rlx.Actions(echo(message, conn))))
        conn.receive()

    with RlxPeer(answer_twice, serve_echo) as peer, client_of(peer) as client:
        assert client.init([5.0]) == 5
        assert client.send(1.0, [6.0]) == 6
        assert [type(message) for message in peer.connections[0].received] == [rlx.Hello, rlx.Init]
        assert len(peer.connections) == 2


def test_error_after_an_answer_prevents_further_messages():
    @echoing
    def answer_and_error(conn):
        conn.welcome()
        message = conn.expect(rlx.Init)
        answer = conn.connection.send(rlx.Actions(echo(message, conn)))
        conn.socket.sendall(answer + conn.connection.send(rlx.Error(ErrorCode.REBALANCING, "elsewhere", True)))
        conn.close()

    with RlxPeer(answer_and_error, serve_echo) as peer, client_of(peer) as client:
        assert client.init([5.0]) == 5
        assert client.send(1.0, [6.0]) == 6
        assert [type(message) for message in peer.connections[0].received] == [rlx.Hello, rlx.Init]


def test_pong_without_a_ping_is_ignored():
    @echoing
    def unrequested_pong(conn):
        conn.welcome()
        conn.receive()
        conn.send(rlx.Pong(3))
        conn.send(rlx.Actions(echo(conn.received[-1], conn)))
        serve(conn)

    with RlxPeer(unrequested_pong) as peer, client_of(peer) as client:
        assert client.init([5.0]) == 5
        assert len(peer.connections) == 1


def test_refusal_in_the_other_codec_is_a_lost_connection():
    """A server that refuses before it has read the hello sends Protobuf."""

    def full(conn):
        conn.socket.sendall(rlx.ServerConnection().send(rlx.Error(ErrorCode.OVERLOADED, "full", True)))
        conn.close()

    with RlxPeer(full, serve_echo) as peer, client_of(peer, codec="json") as client:
        assert client.init([5.0]) == 5
        assert len(peer.connections) == 2
