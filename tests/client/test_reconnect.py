import logging
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Failure
from relaax.rlx import ErrorCode
from support.rlx_peer import PATIENCE, Conversation, RlxPeer, refuse, serve
from support.unused_address import unused_address

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(100)}


def client_of(peer, **settings):
    return Client(peer.address, **{"retry_seconds": 10.0} | SPACES | settings)


def echo(message, talk):
    """The action is the number that was observed."""
    return [message.observation[0][:, 0].astype(np.int64)]


def echoing(script):
    def wrapped(talk: Conversation) -> None:
        talk.policy = echo
        script(talk)

    return wrapped


serve_echo = echoing(serve)


def lose(end, after=2):
    """Let the client in, answer `after` messages, hear another one, and end the connection."""

    @echoing
    def script(talk: Conversation) -> None:
        talk.welcome(session_id="first")
        for _ in range(after):
            talk.answer()
        talk.hear()
        end(talk)

    return script


def error(code, retry_after=0.0):
    return lambda talk: talk.fail(code, "come again", retry_after)


ENDS = {
    "half-close": Conversation.close,
    "reset": Conversation.kill,
    "bye": lambda talk: (talk.say(rlx.Bye("restart")), talk.close()),
    "rebalancing": error(ErrorCode.REBALANCING),
    "unavailable": error(ErrorCode.UNAVAILABLE),
    "timeout": error(ErrorCode.TIMEOUT),
    "overloaded": error(ErrorCode.OVERLOADED),
    "garbage": lambda talk: (talk.socket.sendall(b"\xff" * 64), talk.close()),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interrupted_episode_begins_anew(end):
    with RlxPeer(lose(ENDS[end]), serve_echo) as peer, client_of(peer) as client:
        assert client.init([1.0]) == 1
        assert client.send(1.0, [2.0]) == 2
        assert client.send(10.0, [3.0]) == 3  # lost with the first connection, and answered by the second
        assert client.send(100.0, [4.0]) == 4
        assert client.reset(1000.0) == 1111.0  # the whole episode, of which the second connection saw a part
        client.init([5.0])
        assert client.reset(2.0) == 2.0
    _, second = peer.talks
    assert second.hello.session_id == "first"
    inits = second.of(rlx.Init)
    assert [init.observation[0].tolist() for init in inits] == [[[3.0]], [[5.0]]]
    assert inits[0].partial.tolist() == [True]
    assert inits[1].partial is None
    assert [step.observation[0].tolist() for step in second.of(rlx.Step)] == [[[4.0]]]


def test_the_outcome_of_an_episode_that_was_lost_is_the_clients_own():
    with RlxPeer(lose(Conversation.kill), serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        client.send(1.0, [2.0])
        assert client.reset(10.0) == 11.0
        assert client.init([3.0]) == 3
    (init,) = peer.talks[1].of(rlx.Init)
    assert init.partial is None  # it begins here


def test_the_first_episode_may_be_lost_before_it_began():
    with RlxPeer(lose(Conversation.kill, after=0), serve_echo) as peer, client_of(peer) as client:
        assert client.init([1.0]) == 1
    (init,) = peer.talks[1].of(rlx.Init)
    assert init.partial is None


def test_a_connection_lost_between_messages_is_noticed_with_the_next():
    closed = threading.Event()

    @echoing
    def script(talk: Conversation) -> None:
        talk.welcome()
        talk.answer()
        talk.fail(ErrorCode.REBALANCING, "elsewhere", retry_after=0.3)
        closed.set()

    with RlxPeer(script, serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        start = time.monotonic()
        assert client.send(1.0, [2.0]) == 2
        assert time.monotonic() - start >= 0.3  # so the error was read, though the connection was closed behind it
        assert closed.wait(PATIENCE)


def test_the_servers_last_words_are_read_though_it_is_gone():
    gone = threading.Event()

    @echoing
    def script(talk: Conversation) -> None:
        talk.welcome()
        talk.answer()
        talk.say(rlx.Error(ErrorCode.INVALID_VALUE, "that was too much"))
        talk.socket.close()
        gone.set()

    with RlxPeer(script, serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        assert gone.wait(PATIENCE)
        client._session._wire.send(rlx.Metrics([("x", 1.0)]))  # answered with a reset: the next write will fail
        with pytest.raises(Failure, match="that was too much"):
            client.send(1.0, [2.0])
        assert len(peer.talks) == 1


def test_many_connections_may_be_lost_in_one_episode():
    losses = [lose(Conversation.kill, after=1) for _ in range(4)]
    with RlxPeer(*losses, serve_echo) as peer, client_of(peer) as client:
        client.init([0.0])
        for t in range(1, 6):
            assert client.send(1.0, [float(t)]) == t
        assert client.reset(1.0) == 6.0
    assert len(peer.talks) == 5


def test_an_overloaded_server_lets_the_client_in_later():
    refused = refuse(ErrorCode.OVERLOADED, "no room", retry_after=0.2)
    with RlxPeer(refused, refused, serve_echo) as peer, client_of(peer) as client:
        start = time.monotonic()
        assert client.init([1.0]) == 1
        assert time.monotonic() - start >= 0.4
        assert [type(message) for message in peer.talks[2].heard] == [rlx.Hello, rlx.Init]
    assert peer.talks[2].of(rlx.Init)[0].partial is None


def test_a_wrong_token_after_a_reconnect_fails_at_once():
    with (
        RlxPeer(lose(Conversation.kill), refuse(ErrorCode.UNAUTHENTICATED, "wrong token"), serve_echo) as peer,
        client_of(peer) as client,
    ):
        client.init([1.0])
        client.send(1.0, [2.0])
        with pytest.raises(Failure, match="wrong token"):
            client.send(1.0, [3.0])
        assert len(peer.talks) == 2


def test_gives_up_after_its_time_and_says_what_was_in_the_way():
    with RlxPeer(refuse(ErrorCode.OVERLOADED, "no room for another worker")) as peer:
        start = time.monotonic()
        with client_of(peer, retry_seconds=0.5) as client, pytest.raises(Failure, match=r"no room.*0\.5 s") as failure:
            client.init([1.0])
        assert 0.5 <= time.monotonic() - start < 60
        assert failure.value.code is ErrorCode.OVERLOADED
        assert len(peer.talks) >= 2  # at the very end once more, however long the first attempt took


def test_the_time_for_trying_counts_from_the_last_answer():
    pause = threading.Event()

    def later(talk: Conversation) -> None:
        pause.wait(1.2)
        talk.kill()

    with RlxPeer(lose(Conversation.kill), lose(later), serve_echo) as peer:
        with client_of(peer, retry_seconds=1.0) as client:
            client.init([1.0])
            for t in range(2, 6):
                assert client.send(1.0, [float(t)]) == t
        assert len(peer.talks) == 3


def test_an_agent_that_fails_behind_every_welcome_does_not_start_the_clock_anew():
    with RlxPeer(lose(error(ErrorCode.UNAVAILABLE), after=0)) as peer:
        start = time.monotonic()
        with client_of(peer, retry_seconds=0.5) as client, pytest.raises(Failure, match="come again"):
            client.init([1.0])
        assert time.monotonic() - start < 60


def test_a_server_that_starts_later_is_waited_for():
    class Starter(logging.Handler):
        """Starts the server once the client has failed to reach it."""

        peer = None

        def emit(self, record):
            if self.peer is None and "cannot connect" in record.getMessage():
                held.close()
                self.peer = RlxPeer(serve_echo, port=int(address.rpartition(":")[2]))

    held = ExitStack()
    address = held.enter_context(unused_address())
    starter = Starter(logging.WARNING)
    logging.getLogger("relaax.client").addHandler(starter)
    try:
        with held, Client(address, retry_seconds=20.0, **SPACES) as client:
            assert client.init([1.0]) == 1
    finally:
        logging.getLogger("relaax.client").removeHandler(starter)
        if starter.peer is not None:
            starter.peer.close()


def test_nobody_there_is_told_with_the_address():
    with (
        unused_address() as address,
        Client(address, retry_seconds=0.0, **SPACES) as client,
        pytest.raises(Failure, match=f"connect to {address}"),
    ):
        client.connect()


def test_a_host_that_does_not_exist_is_named():
    with (
        Client("no.such.host.invalid:7001", retry_seconds=0.0, **SPACES) as client,
        pytest.raises(Failure, match=r"cannot find the host 'no\.such\.host\.invalid'"),
    ):
        client.connect()


def test_a_name_that_no_host_can_have_is_told_at_once():
    with Client("a..b:7001", **SPACES) as client, pytest.raises(Failure, match=r"'a\.\.b'"):
        client.connect()


def test_a_server_that_falls_silent_is_left():
    def silent(talk: Conversation) -> None:
        talk.policy = echo
        talk.welcome()
        talk.answer()
        talk.hear()
        talk.hear()  # nothing more: until the client goes

    with RlxPeer(silent, serve_echo) as peer, client_of(peer, response_timeout=1.5) as client:
        client.init([1.0])
        assert client.send(1.0, [2.0]) == 2
    assert len(peer.talks) == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/client")
def test_a_server_that_is_slow_but_heard_of_is_waited_for():
    pause = threading.Event()

    def slow(talk: Conversation) -> None:
        talk.welcome()
        message = talk.expect(rlx.Init)
        for nonce in range(10):
            pause.wait(0.25)
            talk.say(rlx.Ping(nonce))
        talk.say(rlx.Actions(echo(message, talk)))
        while True:
            talk.hear()

    with RlxPeer(slow) as peer:
        with client_of(peer, response_timeout=2.25) as client:
            assert client.init([7.0]) == 7
        peer.finish()
        assert len(list(peer.heard(rlx.Pong))) == 10
        assert len(peer.talks) == 1


def test_metrics_flushed_into_a_lost_connection_do_not_end_the_episode():
    gone = threading.Event()

    @echoing
    def script(talk: Conversation) -> None:
        talk.welcome()
        talk.answer()
        talk.kill()
        gone.set()

    with RlxPeer(script, serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        assert gone.wait(PATIENCE)
        client.metrics().scalar("x", 1.0)
        client.metrics().flush()
        client.metrics().flush()
        assert client.send(1.0, [2.0]) == 2
        assert client.ping() > 0
    assert peer.talks[1].of(rlx.Init)[0].partial.tolist() == [True]


def test_a_connection_lost_at_a_ping_is_replaced_and_the_episode_begins_anew():
    with RlxPeer(lose(Conversation.kill, after=1), serve_echo) as peer, client_of(peer) as client:
        client.init([1.0])
        assert client.ping() > 0
        assert client.send(3.0, [2.0]) == 2
        assert client.reset(4.0) == 7.0
    assert peer.talks[1].of(rlx.Init)[0].observation[0].tolist() == [[2.0]]


def test_returns_are_the_servers_again_once_an_episode_was_whole():
    """They are the client's own sum only for the episode that was interrupted."""

    @echoing
    def otherwise(talk):
        talk.welcome()
        while True:
            message = talk.expect((rlx.Init, rlx.Step, rlx.Reset))
            over = isinstance(message, rlx.Reset)
            talk.say(rlx.EpisodeReturns(np.array([77.0])) if over else rlx.Actions(echo(message, talk)))

    with RlxPeer(lose(Conversation.kill, after=1), otherwise) as peer, client_of(peer) as client:
        returns = []
        for _ in range(2):
            client.init([0.0])
            client.send(1.0, [1.0])
            client.send(1.0, [2.0])
            returns.append(client.reset(1.0))
    assert returns == [3.0, 77.0]


def test_the_newest_session_id_is_said():
    """A server may give another one than it was told."""

    def gives(session_id):
        @echoing
        def script(talk):
            talk.welcome(session_id=session_id)
            talk.answer()
            talk.hear()
            talk.kill()

        return script

    with RlxPeer(gives("first"), gives("second"), gives("third"), serve_echo) as peer, client_of(peer) as client:
        client.init([0.0])
        for _ in range(3):
            client.send(1.0, [1.0])
        assert [hello.session_id for hello in peer.heard(rlx.Hello)] == ["", "first", "second", "third"]


def test_actions_that_nobody_asked_for_are_no_answer_to_the_next_step():
    @echoing
    def twice(talk):
        talk.welcome()
        message = talk.expect(rlx.Init)
        talk.socket.sendall(2 * talk.connection.send(rlx.Actions(echo(message, talk))))
        talk.hear()

    with RlxPeer(twice, serve_echo) as peer, client_of(peer) as client:
        assert client.init([5.0]) == 5
        assert client.send(1.0, [6.0]) == 6
        assert [type(message) for message in peer.talks[0].heard] == [rlx.Hello, rlx.Init]
        assert len(peer.talks) == 2


def test_nothing_is_sent_after_an_error_behind_an_answer():
    @echoing
    def leaving(talk):
        talk.welcome()
        message = talk.expect(rlx.Init)
        answer = talk.connection.send(rlx.Actions(echo(message, talk)))
        talk.socket.sendall(answer + talk.connection.send(rlx.Error(ErrorCode.REBALANCING, "elsewhere", True)))
        talk.close()

    with RlxPeer(leaving, serve_echo) as peer, client_of(peer) as client:
        assert client.init([5.0]) == 5
        assert client.send(1.0, [6.0]) == 6
        assert [type(message) for message in peer.talks[0].heard] == [rlx.Hello, rlx.Init]


def test_a_pong_without_a_ping_is_ignored():
    @echoing
    def ponging(talk):
        talk.welcome()
        talk.hear()
        talk.say(rlx.Pong(3))
        talk.say(rlx.Actions(echo(talk.heard[-1], talk)))
        serve(talk)

    with RlxPeer(ponging) as peer, client_of(peer) as client:
        assert client.init([5.0]) == 5
        assert len(peer.talks) == 1


def test_a_refusal_in_the_other_codec_is_a_lost_connection():
    """A server that refuses before it has read the hello sends Protobuf."""

    def full(talk):
        talk.socket.sendall(rlx.ServerConnection().send(rlx.Error(ErrorCode.OVERLOADED, "full", True)))
        talk.close()

    with RlxPeer(full, serve_echo) as peer, client_of(peer, codec="json") as client:
        assert client.init([5.0]) == 5
        assert len(peer.talks) == 2
