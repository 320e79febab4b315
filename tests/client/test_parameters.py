"""Clients whose environments get parameters from the server."""

from __future__ import annotations

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Failure, VectorClient
from support.rlx_peer import PeerConnection, RlxPeer, Script

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(4)}


def states(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def scripted(first: dict[str, list[float]], *answers: dict[int, list[float]] | None) -> Script:
    def script(conn: PeerConnection) -> None:
        conn.welcome(parameters=first)
        for answer in answers:
            conn.answer(answer)

    return script


def test_parameters_of_the_welcome_and_of_answers() -> None:
    script = scripted({"gravity": [9.8], "size": [4]}, {0: [1.6, 5]}, None, {0: [2.5, 6]}, None, None)
    with RlxPeer(script) as peer, Client(peer.address, environment_parameters=True, **SPACES) as client:
        assert client.parameters == {"gravity": 9.8, "size": 4.0}
        client.init([0.0])
        assert client.parameters == {"gravity": 1.6, "size": 5.0}
        client.send(1.0, [1.0])
        client.send(1.0, [1.0])
        assert client.parameters == {"gravity": 2.5, "size": 6.0}
        client.reset(1.0)
        client.init([0.0])
        assert peer.connections[0].hello.environment_parameters
        assert [init.partial for init in peer.received(rlx.Init)] == [None, None]


def test_parameters_of_several_environments() -> None:
    script = scripted({"a": [1, 2, 3], "b": [4, 5, 6]}, {0: [10, 40], 2: [30, 60]}, {1: [20, 50]})
    with (
        RlxPeer(script) as peer,
        VectorClient(peer.address, environments=3, environment_parameters=True, **SPACES) as client,
    ):
        found = client.parameters
        assert {name: values.tolist() for name, values in found.items()} == {"a": [1, 2, 3], "b": [4, 5, 6]}
        client.init(states(1, 2, 3))
        assert client.parameters["a"].tolist() == [10, 2, 30]
        client.step([1, 2, 3], states(1, 2, 3))
        assert client.parameters["b"].tolist() == [40, 50, 60]
        assert found["a"].tolist() == [1, 2, 3], "earlier results do not change"


def test_episode_that_began_with_other_parameters_is_partial() -> None:
    """The server lost its connection after the client had read the parameters of the next episode."""

    def lost(conn: PeerConnection) -> None:
        conn.welcome(parameters={"a": [1.0]})
        conn.kill()

    with (
        RlxPeer(lost, scripted({"a": [2.0]}, None, None, None)) as peer,
        Client(peer.address, environment_parameters=True, **SPACES) as client,
    ):
        assert client.parameters == {"a": 1.0}
        client.init([0.0])
        client.reset(1.0)
        assert client.parameters == {"a": 2.0}
        client.init([0.0])
        first, second = peer.connections[1].of(rlx.Init)
    assert first.partial is not None
    assert (first.partial.tolist(), second.partial) == ([True], None)


def test_server_without_parameters_for_this_client() -> None:
    with RlxPeer() as peer, Client(peer.address, environment_parameters=True, **SPACES) as client:
        assert client.parameters == {}
        client.init([0.0])
        (init,) = peer.received(rlx.Init)
        assert init.partial is None


def test_parameters_need_a_client_that_asks_for_them() -> None:
    with RlxPeer() as peer, Client(peer.address, **SPACES) as client:
        with pytest.raises(RuntimeError, match="environment_parameters=True"):
            _ = client.parameters
        client.init([0.0])


def test_server_without_support_is_refused_at_once() -> None:
    def old(conn: PeerConnection) -> None:
        conn.welcome(lacks="environment_parameters")
        conn.answer()

    with RlxPeer(old) as peer, Client(peer.address, environment_parameters=True, **SPACES) as client:
        with pytest.raises(Failure, match="the server does not support parameters of environments: its version"):
            _ = client.parameters
        assert len(peer.connections) == 1
