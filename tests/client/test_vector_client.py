import numpy as np
import pytest

from relaax import rlx
from relaax.client import Episode, VectorClient
from relaax.rlx import ErrorCode
from support.rlx_peer import PeerConnection, RlxPeer, serve

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(100)}
NO = [False, False, False]


def echo(message, conn):
    return [message.observation[0][:, 0].astype(np.int64)]


def serve_echo(conn: PeerConnection) -> None:
    conn.policy = echo
    serve(conn)


def lose_after(answers):
    def script(conn: PeerConnection) -> None:
        conn.policy = echo
        conn.welcome()
        for _ in range(answers):
            conn.answer()
        conn.receive()
        conn.fail(ErrorCode.REBALANCING, "elsewhere")

    return script


def vector(peer, autoreset, environments=3, **settings):
    return VectorClient(peer.address, environments=environments, autoreset=autoreset, **SPACES | settings)


def states(*numbers):
    return np.array(numbers, np.float32)[:, None]


def numbers_of(leaves):
    return None if leaves is None else leaves[0][:, 0].tolist()


def flags(mask):
    return None if mask is None else mask.astype(int).tolist()


def test_same_step_sends_masks_and_final_states():
    with RlxPeer(serve_echo) as peer:
        with vector(peer, "same_step") as client:
            assert client.init(states(1, 2, 3)).tolist() == [1, 2, 3]
            actions = client.step([1, 2, 3], states(4, 5, 6), NO, NO)
            assert (actions.dtype, actions.tolist()) == (np.int64, [4, 5, 6])
            client.step([1, 2, 3], states(7, 8, 9), [True, False, False], [False, True, False], states(70, 80, 90))
            client.step([1, 2, 3], states(7, 8, 9), [True, False, False], NO, states(70, 80, 90))
        hello, _, plain, cut, over, _ = peer.connections[0].received
    assert hello.environments == 3
    assert list(hello.autoreset) == [rlx.Autoreset.SAME_STEP]
    assert plain.reward.tolist() == [1.0, 2.0, 3.0]
    assert (plain.terminated, plain.truncated, plain.final_observation, plain.first) == (None, None, None, None)
    assert (flags(cut.terminated), flags(cut.truncated)) == ([1, 0, 0], [0, 1, 0])
    assert numbers_of(cut.final_observation) == [70, 80, 90]
    assert over.final_observation is None  # a terminated state is not bootstrapped from


def test_final_states_in_an_object_array_are_accepted():
    final = np.array([None, np.array([80.0], np.float32), None], object)
    with RlxPeer(serve_echo) as peer, vector(peer, "same_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), NO, [False, True, False], final)
        (step,) = peer.received(rlx.Step)
    assert numbers_of(step.final_observation) == [4, 80, 6]


def test_next_step_sends_ends_and_first_masks():
    with RlxPeer(serve_echo) as peer, vector(peer, "next_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), [False, True, False], [False, False, True])
        client.step([1, 2, 3], states(7, 8, 9), NO, NO, first=[False, True, True])
        end, start = peer.received(rlx.Step)
    assert (flags(end.terminated), flags(end.truncated), end.final_observation) == ([0, 1, 0], [0, 0, 1], None)
    assert (flags(start.first), start.terminated, start.truncated) == ([0, 1, 1], None, None)


def test_terminated_has_precedence_over_truncated():
    with RlxPeer(serve_echo) as peer, vector(peer, "next_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), [True, True, False], [True, False, False])
        (step,) = peer.received(rlx.Step)
    assert (flags(step.terminated), step.truncated) == ([1, 1, 0], None)


def test_reset_returns_the_returns_of_all_environments():
    with RlxPeer(serve_echo) as peer, vector(peer, "disabled", 2) as client:
        client.init(states(1, 2))
        client.step([1, 2], states(3, 4))
        assert client.reset([10, 20], [False, True], states(5, 6)).tolist() == [11, 22]
        client.init(states(1, 2))
        assert client.reset([1, 2]).tolist() == [1, 2]
        cut, over = peer.received(rlx.Reset)
    assert (flags(cut.truncated), numbers_of(cut.final_observation)) == ([0, 1], [5, 6])
    assert (over.truncated, over.final_observation) == (None, None)


def test_episodes_reported_by_the_client_are_sent():
    with RlxPeer(serve_echo) as peer, vector(peer, "same_step", reports_episodes=True) as client:
        client.init(states(1, 2, 3))
        client.step([0, 0, 0], states(1, 2, 3), episodes=[Episode(2, 5.0, 6)])
        (step,) = peer.received(rlx.Step)
    assert list(step.episodes) == [Episode(2, 5.0, 6)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([0, 0], states(1, 2, 3)), "reward"),
        (([0, 0, 0], states(1, 2)), "observation"),
        (([0, 0, 0], [1, 2, 3]), "shape"),
        (([0, 0, np.nan], states(1, 2, 3)), "reward of environment 2"),
        (([0, 0, None], states(1, 2, 3)), "rewards is .0, 0, None.: it must hold one number for each environment"),
        ((0.0, states(1, 2, 3)), "rewards is 0.0: it must hold one number for each environment"),
        ((["a", "b", "c"], states(1, 2, 3)), "rewards is .'a', 'b', 'c'.: it must"),
        (([0, 0, 0], states(1, 2, 3), [True]), "terminated"),
        (([0, 0, 0], states(1, 2, 3), None, [True, False, False]), "final_states"),
        (([0, 0, 0], states(1, 2, 3), None, None, None, [True, False, False]), "first|start"),
    ],
)
def test_invalid_step_is_refused_and_the_connection_continues(arguments, sentence):
    with RlxPeer(serve_echo) as peer, vector(peer, "same_step") as client:
        client.init(states(1, 2, 3))
        with pytest.raises(ValueError, match=sentence):
            client.step(*arguments)
        assert client.step([0, 0, 0], states(1, 2, 3)).tolist() == [1, 2, 3]
        assert len(peer.connections) == 1


@pytest.mark.parametrize(("settings", "sentence"), [({"environments": 0}, "0"), ({"autoreset": "never"}, "'never'")])
def test_invalid_settings_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        VectorClient("127.0.0.1:1", **{"environments": 1} | SPACES | settings)


def test_loss_in_same_step_makes_only_open_episodes_partial():
    with RlxPeer(lose_after(1), serve_echo) as peer, vector(peer, "same_step") as client:
        client.init(states(1, 2, 3))
        ends = [True, False, False], [False, True, False]
        assert client.step([1, 2, 3], states(4, 5, 6), *ends, states(7, 8, 9)).tolist() == [4, 5, 6]
        assert client.step([1, 2, 3], states(5, 6, 7)).tolist() == [5, 6, 7]
        init, step = peer.connections[1].of(rlx.Init, rlx.Step)
    assert (numbers_of(init.observation), flags(init.partial)) == ([4, 5, 6], [0, 0, 1])
    assert numbers_of(step.observation) == [5, 6, 7]


def test_loss_with_disabled_autoreset_keeps_whole_returns():
    with RlxPeer(lose_after(1), serve_echo) as peer, vector(peer, "disabled") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6))
        client.step([1, 2, 3], states(4, 5, 6))
        assert client.reset([1, 2, 3]).tolist() == [3, 6, 9]
        assert flags(peer.connections[1].of(rlx.Init)[0].partial) == [1, 1, 1]


def test_next_step_loss_keeps_just_begun_episodes_whole():
    with RlxPeer(lose_after(2), serve_echo) as peer, vector(peer, "next_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), [False, True, False])
        assert client.step([1, 2, 3], states(7, 8, 9), first=[False, True, False]).tolist() == [7, 8, 9]
        client.step([1, 2, 3], states(1, 2, 3))
        (init, _) = peer.connections[1].of(rlx.Init, rlx.Step)
    assert (numbers_of(init.observation), flags(init.partial)) == ([7, 8, 9], [1, 0, 1])


def test_end_lost_in_next_step_is_sent_to_the_new_connection():
    """The environments reset, but the new connection has not received the end, so all its episodes restart."""
    with RlxPeer(lose_after(1), serve_echo) as peer, vector(peer, "next_step", 4) as client:
        client.init(states(1, 2, 3, 4))
        lost = client.step(
            [1, 2, 3, 4], states(11, 12, 13, 14), [True, False, False, False], [False, True, False, False]
        )
        assert lost.tolist() == [11, 12, 13, 14]
        actions = client.step(
            [-1, -1, 3, 4], states(20, 21, 22, 23), [False, False, True, False], first=[True, True, False, False]
        )
        assert actions.tolist() == [20, 21, 22, 23]
        # Environment 2 ended with the previous message, so all episodes restart once more.
        last_actions = client.step([1, 2, -1, 4], states(30, 31, 32, 33), first=[False, False, True, False])
        assert last_actions.tolist() == [30, 31, 32, 33]
        assert client.step([1, 2, 3, 4], states(40, 41, 42, 43)).tolist() == [40, 41, 42, 43]
        resent = peer.connections[1].received[1:]
    assert [type(message) for message in resent] == [rlx.Init, rlx.Reset, rlx.Init, rlx.Reset, rlx.Init, rlx.Step]
    init, end, second, last, third, _ = resent
    assert flags(init.partial) == [1, 1, 1, 1]
    assert end.reward.tolist() == [0, 0, 3, 4]  # no reward for an environment whose episode began
    assert numbers_of(end.final_observation) == [11, 12, 22, 23]
    assert flags(end.truncated) == [0, 1, 0, 1]  # terminated, truncated, just terminated, truncated by the client
    assert (numbers_of(second.observation), flags(second.partial)) == ([20, 21, 22, 23], [1, 1, 1, 1])
    assert last.reward.tolist() == [1, 2, 0, 4]
    assert (numbers_of(last.final_observation), flags(last.truncated)) == ([30, 31, 22, 33], [1, 1, 0, 1])
    assert (numbers_of(third.observation), flags(third.partial)) == ([30, 31, 32, 33], [1, 1, 0, 1])


def test_reset_after_a_next_step_end_returns_zero_for_it():
    for script in (serve_echo, lose_after(2), lose_after(3)):
        with RlxPeer(script, serve_echo) as peer, vector(peer, "next_step") as client:
            client.init(states(1, 2, 3))
            client.step([1, 2, 3], states(4, 5, 6))
            client.step([1, 2, 3], states(4, 5, 6), [False, True, False], [False, False, True])
            returns = client.reset([10, 70, 70], [True, False, False], states(7, 8, 9))
            if script is serve_echo:
                continue  # the scripted server returns the sum of all rewards
            assert returns.tolist() == [12, 0, 0]
            assert client.init(states(1, 2, 3)).tolist() == [1, 2, 3]
            assert client.reset([1, 2, 3]).tolist() == [1, 2, 3]


@pytest.mark.parametrize("has_final_states", [True, False])
def test_reset_sends_lost_next_step_ends_to_the_new_connection(has_final_states):
    """On the new connection all episodes are partial, so the lost ends are sent there, with their final states."""
    with RlxPeer(lose_after(1), serve_echo) as peer, vector(peer, "next_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), [True, False, False], [False, True, False])
        last = ([False, False, True], states(7, 8, 9)) if has_final_states else ()
        assert client.reset([70, 70, 4], *last).tolist() == [0, 0, 7]
        (reset,) = peer.connections[1].of(rlx.Reset)
    assert reset.reward.tolist() == [0, 0, 4]
    assert flags(reset.truncated) == [0, 1, int(has_final_states)]
    assert numbers_of(reset.final_observation) == [4, 5, 9 if has_final_states else 6]


def test_final_states_of_a_lost_end_are_copied():
    """An environment may overwrite its states before the end is sent with the next message."""
    with RlxPeer(lose_after(1), serve_echo) as peer, vector(peer, "next_step") as client:
        current = states(1, 2, 3)
        client.init(current)
        current[:] = states(4, 5, 6)
        client.step([1, 2, 3], current, NO, [False, True, False])
        current[:] = states(7, 8, 9)
        client.step([1, 0, 3], current, first=[False, True, False])
        (reset,) = peer.connections[1].of(rlx.Reset)
    assert numbers_of(reset.final_observation) == [7, 5, 9]


def test_lost_end_is_sent_only_once_after_a_reset():
    with RlxPeer(lose_after(1), serve_echo) as peer, vector(peer, "next_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), [True, False, False])
        client.reset([0, 0, 0])
        client.init(states(1, 2, 3))
        assert client.step([1, 2, 3], states(7, 8, 9)).tolist() == [7, 8, 9]
        kinds = [type(message) for message in peer.connections[1].received[1:]]
    assert kinds == [rlx.Init, rlx.Reset, rlx.Init, rlx.Step]
