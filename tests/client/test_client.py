import signal
import socket
import threading

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Episode, Failure, TrainingFinished
from support.rlx_peer import PATIENCE, PeerConnection, RlxPeer, refuse, serve

SPACES = {"observation_space": rlx.Box(shape=(2,)), "action_space": rlx.Discrete(3, start=1)}


def client_of(peer, **settings):
    return Client(peer.address, **{"retry_seconds": 5.0} | SPACES | settings)


def test_episode_sends_hello_steps_reset_and_bye():
    with RlxPeer() as peer:
        with client_of(peer, environment="maze", frame_skip=4, mode="exploit", token="secret") as client:
            assert client.init([1.0, 2.0]) == 1
            assert type(client.send(0.5, [3.0, 4.0])) is int
            assert client.reset(2.0) == 2.5
            client.init([5.0, 6.0])
            assert client.reset(-1.0) == -1.0
        peer.finish()
    hello, *rest = peer.connections[0].received
    assert (hello.environment, hello.frame_skip, hello.mode, hello.token) == ("maze", 4, rlx.Mode.EXPLOIT, "secret")
    assert (hello.environments, list(hello.autoreset)) == (1, [rlx.Autoreset.DISABLED])
    assert not hello.reports_episodes
    assert [type(message) for message in rest] == [rlx.Init, rlx.Step, rlx.Reset, rlx.Init, rlx.Reset, rlx.Bye]
    init, step, reset = rest[:3]
    assert init.observation[0].tolist() == [[1.0, 2.0]]
    assert init.partial is None
    assert (step.reward.tolist(), step.observation[0].tolist()) == ([0.5], [[3.0, 4.0]])
    assert (reset.reward.tolist(), reset.truncated, reset.final_observation) == ([2.0], None, None)


def test_signal_while_an_answer_is_pending_does_not_prevent_bye():
    answered = threading.Event()

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.expect(rlx.Step)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        conn.send(rlx.Actions(conn.policy(conn.received[-1], conn)))
        answered.set()
        conn.receive()

    def interrupt(*_: object) -> None:
        assert answered.wait(PATIENCE)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with RlxPeer(script) as peer:
            with pytest.raises(KeyboardInterrupt), client_of(peer) as client:
                client.init([1.0, 2.0])
                client.send(0.0, [1.0, 2.0])
            peer.finish()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert isinstance(peer.connections[0].received[-1], rlx.Bye)


def test_episode_return_is_computed_by_the_server():
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.expect(rlx.Reset)
        conn.send(rlx.EpisodeReturns(np.array([42.0])))

    with RlxPeer(script) as peer, client_of(peer) as client:
        client.init([0.0, 0.0])
        assert client.reset(1.0) == 42.0


def test_truncated_episode_requires_its_final_state():
    with RlxPeer() as peer:
        with client_of(peer) as client:
            client.init([0.0, 0.0])
            with pytest.raises(ValueError, match="final state"):
                client.reset(1.0, truncated=True)
            client.reset(1.0, truncated=True, state=[7.0, 8.0])
        (reset,) = peer.received(rlx.Reset)
    assert reset.truncated.tolist() == [True]
    assert reset.final_observation[0].tolist() == [[7.0, 8.0]]


def test_episodes_reported_by_the_client_are_sent():
    with RlxPeer() as peer:
        with client_of(peer, reports_episodes=True) as client:
            client.init([0.0, 0.0])
            client.send(1.0, [0.0, 0.0], episodes=[Episode(0, 12.0, 34)])
            client.reset(1.0, episodes=[Episode(0, 56.0, 78)])
        assert peer.connections[0].hello.reports_episodes
        (step,), (reset,) = peer.received(rlx.Step), peer.received(rlx.Reset)
    assert list(step.episodes) == [Episode(0, 12.0, 34)]
    assert list(reset.episodes) == [Episode(0, 56.0, 78)]


def test_values_of_nested_spaces_have_natural_types():
    action_space = rlx.Dict({"keys": rlx.MultiBinary(3), "stick": rlx.Tuple([rlx.Box(-1, 1, (2,)), rlx.Discrete(2)])})
    observation_space = rlx.Dict({"camera": rlx.Box(0, 255, (4, 4), np.uint8), "speed": rlx.Box(shape=())})
    with (
        RlxPeer() as peer,
        client_of(peer, action_space=action_space, observation_space=observation_space) as client,
    ):
        action = client.init({"camera": np.zeros((4, 4), np.uint8), "speed": 1.0})
        assert action["keys"].tolist() == [0, 0, 0]
        stick, button = action["stick"]
        assert (stick.dtype, stick.tolist()) == (np.float32, [-1.0, -1.0])
        assert button == 0
        assert type(button) is int


def test_json_codec_sends_the_same_messages():
    with RlxPeer() as peer:
        with client_of(peer, codec="json") as client:
            assert client.init([1.0, 2.0]) == 1
        assert peer.connections[0].connection.codec == "json"
        assert peer.connections[0].of(rlx.Init)[0].observation[0].tolist() == [[1.0, 2.0]]


def test_token_defaults_to_the_environment_variable(monkeypatch):
    monkeypatch.setenv("RELAAX_TOKEN", "from-outside")
    with RlxPeer() as peer:
        with client_of(peer) as client:
            client.connect()
        with client_of(peer, token="") as client:
            client.connect()
        assert [hello.token for hello in peer.received(rlx.Hello)] == ["from-outside", ""]


def test_ping_is_answered_before_and_within_an_episode():
    with RlxPeer() as peer, client_of(peer) as client:
        assert 0 < client.ping() < PATIENCE
        client.init([0.0, 0.0])
        assert 0 < client.ping() < PATIENCE
        assert client.send(1.0, [0.0, 0.0]) == 1


def test_server_pings_are_answered_while_an_answer_is_pending():
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.expect(rlx.Init)
        for nonce in (3, 4):
            conn.send(rlx.Ping(nonce))
            assert conn.receive() == rlx.Pong(nonce)
        conn.send(rlx.Actions([np.array([2])]))

    with RlxPeer(script) as peer, client_of(peer) as client:
        assert client.init([0.0, 0.0]) == 2
        peer.finish()


def test_training_finished_is_raised_and_is_no_failure():
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.expect(rlx.Step)
        conn.send(rlx.TrainingFinished("the goal is reached", 12345))
        conn.close()

    with RlxPeer(script) as peer, client_of(peer) as client:
        client.init([0.0, 0.0])
        with pytest.raises(TrainingFinished, match="the goal is reached") as finished:
            client.send(0.0, [0.0, 0.0])
        assert finished.value.global_step == 12345
        assert not isinstance(finished.value, Failure)
        with pytest.raises(TrainingFinished):
            client.ping()
        assert len(peer.connections) == 1


@pytest.mark.parametrize(
    "code",
    [
        rlx.ErrorCode.UNAUTHENTICATED,
        rlx.ErrorCode.UNSUPPORTED_VERSION,
        rlx.ErrorCode.UNSUPPORTED_SPACE,
        rlx.ErrorCode.SPACE_MISMATCH,
    ],
)
def test_permanent_error_fails_at_once_with_the_server_text(code):
    with RlxPeer(refuse(code, "such a client cannot be let in"), serve) as peer, client_of(peer) as client:
        with pytest.raises(Failure, match=f"{peer.address}.*such a client cannot be let in") as failure:
            client.init([0.0, 0.0])
        assert failure.value.code is code
        assert len(peer.connections) == 1


def test_failed_agent_fails_without_a_retry():
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.expect(rlx.Step)
        conn.send(rlx.Error(rlx.ErrorCode.AGENT_FAILED, "the loss is NaN"))
        conn.close()

    with RlxPeer(script, serve) as peer, client_of(peer) as client:
        client.init([0.0, 0.0])
        with pytest.raises(Failure, match="the loss is NaN") as failure:
            client.send(0.0, [0.0, 0.0])
        assert failure.value.code is rlx.ErrorCode.AGENT_FAILED
        assert len(peer.connections) == 1


def test_answer_that_is_not_rlx_fails_without_a_retry():
    def script(conn: PeerConnection) -> None:
        conn.expect(rlx.Hello)
        conn.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        conn.close()

    with RlxPeer(script) as peer, client_of(peer) as client:
        with pytest.raises(Failure, match=r"broke the protocol: .* is it an RLX server\?"):
            client.init([0.0, 0.0])
        assert len(peer.connections) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_invalid_value_is_refused_before_it_is_sent(bad):
    with RlxPeer() as peer:
        with client_of(peer) as client:
            with pytest.raises(ValueError, match=r"observation|NaN|infinite"):
                client.init([bad, 0.0])
            client.init([0.0, 0.0])
            with pytest.raises(ValueError, match="reward"):
                client.send(bad, [0.0, 0.0])
            with pytest.raises(ValueError, match="shape"):
                client.send(0.0, [0.0])
            assert client.send(1.0, [0.0, 0.0]) == 1
            assert client.reset(1.0) == 2.0
        assert len(peer.connections) == 1


def test_calls_out_of_order_name_the_missing_call():
    with RlxPeer() as peer, client_of(peer) as client:
        with pytest.raises(RuntimeError, match=r"init\(\)"):
            client.send(0.0, [0.0, 0.0])
        with pytest.raises(RuntimeError, match=r"init\(\)"):
            client.reset(0.0)
        client.init([0.0, 0.0])
        with pytest.raises(RuntimeError, match=r"reset\(\)"):
            client.init([0.0, 0.0])


def test_disconnected_client_resumes_its_session():
    with RlxPeer() as peer, client_of(peer) as client:
        client.init([0.0, 0.0])
        client.disconnect()
        client.disconnect()
        client.init([0.0, 0.0])
        assert [hello.session_id for hello in peer.received(rlx.Hello)] == ["", "session-1"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mode": "learn"}, "mode is 'learn'"),
        ({"codec": "xml"}, "codec is 'xml'"),
        ({"retry_seconds": -1}, "retry_seconds"),
        ({"action_space": "Discrete"}, "type str"),
    ],
)
def test_invalid_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Client("127.0.0.1:1", **SPACES | settings)


def test_the_socket_is_tuned_for_small_messages():
    with RlxPeer() as peer, client_of(peer) as client:
        client.connect()
        sock = client._session._wire._socket
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
