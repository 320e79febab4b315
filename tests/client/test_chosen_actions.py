"""Clients whose environments take other actions than the agent's."""

from __future__ import annotations

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Client, Failure, VectorClient
from support.rlx_peer import PeerConnection, RlxPeer

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(4, 2)}
NAMED = rlx.Dict({"gear": rlx.Discrete(3), "steer": rlx.Box(-1, 1, (2,))})


def states(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def test_action_of_one_environment_is_sent_with_step_and_reset() -> None:
    with RlxPeer() as peer, Client(peer.address, chosen_actions=True, **SPACES) as client:
        client.init([0.0])
        client.send(1.0, [1.0], action=5)
        client.send(1.0, [2.0])
        client.reset(1.0, action=3)
        client.init([0.0])
        client.reset(1.0)
        hello = peer.connections[0].hello
        (chosen, own), (last, own_last) = peer.received(rlx.Step), peer.received(rlx.Reset)
    assert hello.chosen_actions
    assert (chosen.chosen.tolist(), chosen.action[0].tolist()) == ([True], [5])
    assert own.chosen is own.action is None
    assert (last.chosen.tolist(), last.action[0].tolist()) == ([True], [3])
    assert own_last.chosen is own_last.action is None


def test_action_of_a_dict_space_is_sent() -> None:
    spaces = SPACES | {"action_space": NAMED}
    with RlxPeer() as peer, Client(peer.address, chosen_actions=True, **spaces) as client:
        client.init([0.0])
        client.send(1.0, [1.0], action={"steer": np.array([0.5, -1]), "gear": 2})
        (step,) = peer.received(rlx.Step)
    assert [leaf.tolist() for leaf in step.action] == [[2], [[0.5, -1]]]


def test_actions_of_several_environments_are_sent() -> None:
    with RlxPeer() as peer, VectorClient(peer.address, environments=3, chosen_actions=True, **SPACES) as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(1, 2, 3), actions=[2, 5, 99], chosen=[True, True, False])
        client.step([1, 2, 3], states(1, 2, 3), actions=[2, 5, 99], chosen=[False] * 3)
        client.step([1, 2, 3], states(1, 2, 3))
        client.reset([1, 2, 3], actions=np.array([2, 2, 4]), chosen=np.array([False, False, True]))
        (some, none, plain), (last,) = peer.received(rlx.Step), peer.received(rlx.Reset)
    assert (some.chosen.tolist(), some.action[0].tolist()) == ([True, True, False], [2, 5, 99])
    assert none.chosen is none.action is plain.chosen is plain.action is None
    assert (last.chosen.tolist(), last.action[0].tolist()) == ([False, False, True], [2, 2, 4])


def test_action_out_of_step_is_sent_when_it_is_complete() -> None:
    with (
        RlxPeer() as peer,
        VectorClient(peer.address, environments=2, chosen_actions=True, out_of_step=True, **SPACES) as client,
    ):
        client.init(states(1, 2))
        client.step([1, 0], states(1, np.nan), idle=[False, True], actions=[3, 0], chosen=[True, False])
        client.step([1, 5], states(1, 2), actions=[0, 4], chosen=[False, True])
        first, second = peer.received(rlx.Step)
    assert (first.chosen.tolist(), second.chosen.tolist()) == ([True, False], [False, True])


def test_wrong_actions_are_refused() -> None:
    with RlxPeer() as peer, Client(peer.address, chosen_actions=True, **SPACES) as client:
        client.init([0.0])
        with pytest.raises(ValueError, match="action holds 9, not a value of Discrete"):
            client.send(1.0, [1.0], action=9)
        client.send(1.0, [1.0], action=2)
    with RlxPeer() as peer, Client(peer.address, **SPACES) as client:
        client.init([0.0])
        with pytest.raises(ValueError, match="create the client with chosen_actions=True"):
            client.send(1.0, [1.0], action=2)
    with RlxPeer() as peer, VectorClient(peer.address, environments=2, chosen_actions=True, **SPACES) as many:
        many.init(states(1, 2))
        with pytest.raises(ValueError, match="chosen marks an environment: give its action in actions"):
            many.step([1, 2], states(1, 2), chosen=[True, False])
        with pytest.raises(ValueError, match=r"chosen has shape \[1\]"):
            many.step([1, 2], states(1, 2), chosen=[True], actions=[2, 2])


def test_server_without_support_is_refused_at_once() -> None:
    def old(conn: PeerConnection) -> None:
        conn.welcome(lacks="chosen_actions")
        conn.answer()

    with RlxPeer(old) as peer, Client(peer.address, chosen_actions=True, **SPACES) as client:
        with pytest.raises(Failure, match="the server does not support actions of the client: its version is too old"):
            client.init([0.0])
        assert len(peer.connections) == 1
