"""A hello that is too long with the bounds of observations is sent without them (protocol/RLX.md, section 6)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, VectorClient
from relaax.client.connection.client import Codec
from support.offline import start_offline_server
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, serve

LOWS = np.r_[np.zeros(21_168), np.full(3, -np.inf)]
IMAGE_AND_NUMBERS = rlx.Box(LOWS, np.r_[np.full(21_168, 255.0), np.full(3, np.inf)])
"""The space of an image and three unbounded numbers, as gymnasium flattens it."""
UNBOUNDED = rlx.Box(shape=(21_171,))
CHOICE = rlx.Discrete(3)
each_codec = pytest.mark.parametrize("codec", ["protobuf", "json"])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with Processes(folder) as processes:
        yield start_offline_server(processes, folder)[1]


@each_codec
@pytest.mark.parametrize("scheme", ["", "ws://"])
def test_server_accepts_long_bounds_again_after_a_reconnect(address: str, scheme: str, codec: Codec) -> None:
    spaces = {"observation_space": IMAGE_AND_NUMBERS, "action_space": CHOICE}
    state = np.zeros((2, 21_171), np.float32)
    with (
        Client(scheme + address, codec=codec, **spaces) as one,
        VectorClient(scheme + address, codec=codec, environments=2, **spaces) as many,
    ):
        for _ in range(2):
            assert one.init(state[0]) == 0
            assert one.send(1.0, state[0]) == 0
            assert many.init(state).tolist() == [0, 0]
            one.disconnect()
            many.disconnect()


@each_codec
def test_only_bounds_of_observations_are_left_out(codec: Codec) -> None:
    def nested(box: rlx.Box) -> rlx.Space:
        return rlx.Dict({"parts": rlx.Tuple([box, CHOICE]), "switch": rlx.MultiBinary(2)})

    action = rlx.Tuple([rlx.Box([-3.0, 0.0], 5.0), CHOICE])
    with RlxPeer() as peer:
        spaces = {"observation_space": nested(IMAGE_AND_NUMBERS), "action_space": action}
        with Client(peer.address, codec=codec, **spaces) as client:
            client.connect()
        hello = peer.connections[0].hello
    assert (hello.observation_space, hello.action_space) == (nested(UNBOUNDED), action)


def test_bounds_are_sent_up_to_the_limit() -> None:
    """The session id makes the hello of the second connection too long."""
    bounded = rlx.Box(LOWS[-7900:])

    def client(token: str) -> Client:
        return Client(peer.address, observation_space=bounded, action_space=CHOICE, token=token)

    def length(hello: rlx.Hello) -> int:
        return len(rlx.ClientConnection().send(hello)) - 4

    def dies(conn: PeerConnection) -> None:
        conn.welcome(session_id="s1")
        conn.answer()
        conn.kill()

    with RlxPeer(serve, dies, serve) as peer:
        with client("") as measured:
            measured.connect()
        room = rlx.HANDSHAKE_FRAME_BYTES - length(peer.connections[0].hello) - 3  # without the head of the token
        state = np.zeros(7900, np.float32)
        with client("x" * room) as longest:
            longest.init(state)
            longest.send(1.0, state)
        _, first, second = peer.connections
    assert length(first.hello) == rlx.HANDSHAKE_FRAME_BYTES
    assert first.hello.observation_space == bounded
    assert (second.hello.session_id, second.hello.observation_space) == ("s1", rlx.Box(shape=(7900,)))


@each_codec
def test_long_bounds_of_actions_are_refused_without_a_retry(codec: Codec) -> None:
    spaces = {"observation_space": IMAGE_AND_NUMBERS, "action_space": IMAGE_AND_NUMBERS}
    with (
        RlxPeer() as peer,
        Client(peer.address, codec=codec, **spaces) as client,
        pytest.raises(ValueError, match=r"the hello is a frame of \d+ bytes; .* use one bound for all elements"),
    ):
        client.connect()
    assert len(peer.connections) == 1
    assert peer.connections[0].received == []
