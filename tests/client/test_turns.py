"""Tests of a vector client whose environments are out of step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaax import rlx
from relaax.client import Failure, VectorClient
from relaax.rlx import Autoreset, ErrorCode
from support.cutting_proxy import CuttingProxy
from support.offline import start_offline_server
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, Script, serve
from support.turn_algorithm import SPACES as TURN_SPACES
from support.turn_world import TurnWorld

SPACES = {"observation_space": rlx.Box(shape=(1,)), "action_space": rlx.Discrete(100)}
NAN = np.nan
ALGORITHM = Path(__file__).parents[1] / "support" / "turn_algorithm.py"


def lose_after(answers: int) -> Script:
    def script(conn: PeerConnection) -> None:
        conn.welcome()
        for _ in range(answers):
            conn.answer()
        conn.receive()
        conn.fail(ErrorCode.REBALANCING, "elsewhere")

    return script


def vector(peer: RlxPeer, autoreset: str, environments: int = 3, **settings: object) -> VectorClient:
    return VectorClient(
        peer.address,
        environments=environments,
        **{"autoreset": autoreset, "out_of_step": True} | SPACES | settings,  # type: ignore[arg-type]
    )


def states(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)[:, None]


def numbers_of(leaves: rlx.Leaves | None) -> list[float] | None:
    return None if leaves is None else leaves[0][:, 0].tolist()  # type: ignore[no-any-return]


def flags(mask: np.ndarray | None) -> list[int] | None:
    return None if mask is None else mask.astype(int).tolist()  # type: ignore[no-any-return]


def masks(step: rlx.Step) -> dict[str, list[int]]:
    """Return the masks of a step that are not all false."""
    found = {name: flags(getattr(step, name)) for name in ("terminated", "truncated", "first", "idle")}
    return {name: mask for name, mask in found.items() if mask is not None}


@pytest.mark.parametrize("autoreset", ["disabled", "same_step", "next_step"])
def test_first_is_computed_and_void_rewards_are_zero(autoreset: str) -> None:
    with RlxPeer() as peer, vector(peer, autoreset) as client:
        idle = np.array([False, True, True])
        client.init(states(1, NAN, NAN), idle)
        idle[:] = [True, False, True]  # the client has copied it
        client.step([NAN, NAN, NAN], states(NAN, 2, NAN), idle=idle)
        client.step([3, 4, NAN], states(3, 4, 5))
        client.step([3, 4, 5], states(3, 4, 5))
        hello, init, held, come, plain = peer.connections[0].received
    assert hello.out_of_step
    assert flags(init.idle) == [0, 1, 1]
    assert (masks(held), held.reward.tolist()) == ({"first": [0, 1, 0], "idle": [1, 0, 1]}, [0, 0, 0])
    assert (masks(come), come.reward.tolist()) == ({"first": [0, 0, 1]}, [3, 4, 0])
    assert (masks(plain), plain.reward.tolist()) == ({}, [3, 4, 5])


def test_environment_that_leaves_comes_with_a_first_observation() -> None:
    with RlxPeer() as peer, vector(peer, "same_step") as client:
        client.init(states(1, 2, 3))
        ends = [True, False, False], [False, True, True]
        client.step([1, 2, 3], states(NAN, NAN, 6), *ends, states(7, 8, 9), idle=[True, True, False])
        client.step([0, 0, 3], states(NAN, 5, 6), idle=[True, False, False])
        leave, come = peer.received(rlx.Step)
    assert masks(leave) == {"terminated": [1, 0, 0], "truncated": [0, 1, 1], "idle": [1, 1, 0]}
    assert (leave.reward.tolist(), numbers_of(leave.final_observation)) == ([1, 2, 3], [7, 8, 9])
    assert masks(come) == {"first": [0, 1, 0], "idle": [1, 0, 0]}


def test_next_step_environments_may_stay_away() -> None:
    with RlxPeer() as peer, vector(peer, "next_step") as client:
        client.init(states(1, 2, 3))
        client.step([1, 2, 3], states(4, 5, 6), [True, True, False], idle=[True, False, False])
        client.step([0, 0, 3], states(7, NAN, 9), first=[True, False, False], idle=[False, True, False])
        client.step([1, 0, 3], states(7, 8, 9))
        leave, come, last = peer.received(rlx.Step)
    assert masks(leave) == {"terminated": [1, 1, 0], "idle": [1, 0, 0]}
    assert masks(come) == {"first": [1, 0, 0], "idle": [0, 1, 0]}
    assert masks(last) == {"first": [0, 1, 0]}


def test_server_without_support_is_refused_at_once() -> None:
    def old(conn: PeerConnection) -> None:
        conn.welcome(lacks="out_of_step")
        conn.answer()

    with RlxPeer(old) as peer, vector(peer, "same_step") as client:
        why = (
            "the server does not support environments out of step: its version is too old, or its algorithm scripted "
            "does not"
        )
        with pytest.raises(Failure, match=why):
            client.init(states(1, 2, 3))
        assert len(peer.connections) == 1


def test_idle_needs_a_client_out_of_step() -> None:
    with RlxPeer() as peer, vector(peer, "same_step", out_of_step=False) as client:
        with pytest.raises(ValueError, match="idle marks an environment: .*out_of_step=True"):
            client.init(states(1, 2, 3), [True, False, False])
        client.init(states(1, 2, 3), [False, False, False])
        with pytest.raises(ValueError, match="idle marks an environment: .*out_of_step=True"):
            client.step([1, 2, 3], states(1, 2, 3), idle=[True, False, False])
        client.step([1, 2, 3], states(1, 2, 3))
        assert not peer.connections[0].hello.out_of_step


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"terminated": [False, True, False]},
            "terminated or truncated marks environment 1, which is between two episodes",
        ),
        (
            {"truncated": [False, False, True], "final_states": states(1, 2, 3), "idle": [False, False, True]},
            "terminated or truncated marks environment 2, which is between two episodes",
        ),
        ({"first": [True, False, False]}, r"first marks the environments \[0\], but episodes begin in \[1, 2\]"),
        ({"idle": [True]}, r"idle has shape \[1\]: it must hold one flag for each of 3 environments"),
        ({"terminated": [True]}, r"terminated has shape \[1\]"),
        ({"truncated": [True, False], "final_states": states(1, 2, 3)}, r"truncated has shape \[2\]"),
        ({"first": [[True]]}, r"first has shape \[1, 1\]"),
        ({"rewards": [1]}, "rewards is .1.: it must hold one number for each environment"),
    ],
)
def test_wrong_marks_are_refused_before_they_are_sent(arguments: dict[str, object], sentence: str) -> None:
    with RlxPeer() as peer, vector(peer, "same_step") as client:
        client.init(states(1, 2, 3), [False, True, True])
        with pytest.raises(ValueError, match=sentence):
            client.step(**{"rewards": [1, 0, 0], "states": states(1, 2, 3)} | arguments)
        client.step([1, 0, 0], states(1, 2, 3))
        assert [masks(step) for step in peer.received(rlx.Step)] == [{"first": [0, 1, 1]}]


def test_disabled_environment_cannot_leave() -> None:
    with RlxPeer() as peer, vector(peer, "disabled") as client:
        client.init(states(1, 2, 3))
        with pytest.raises(ValueError, match="DISABLED"):
            client.step([1, 2, 3], states(1, 2, 3), [True, False, False], idle=[True, False, False])
        client.step([1, 2, 3], states(1, 2, 3))


def test_reset_ends_only_the_episodes_that_are_in_progress() -> None:
    with RlxPeer() as peer, vector(peer, "disabled") as client:
        client.init(states(1, NAN, NAN), [False, True, True])
        client.step([1, NAN, NAN], states(1, 2, NAN), idle=[False, False, True])
        with pytest.raises(ValueError, match="truncated must be false for environment 2"):
            client.reset([1, 2, 3], [False, False, True], states(1, 2, 3))
        client.reset([1, 2, NAN], [True, False, False], states(4, 5, NAN))
        client.init(states(1, NAN, NAN), [True, True, True])
        client.reset([NAN, NAN, NAN], None, states(NAN, NAN, NAN))
        last, none = peer.received(rlx.Reset)
    assert (last.reward.tolist(), flags(last.truncated)) == ([1, 2, 0], [1, 0, 0])
    assert numbers_of(last.final_observation) == [4, 5, 4]
    assert (none.reward.tolist(), none.final_observation) == ([0, 0, 0], None)


def test_loss_makes_actions_in_progress_partial_and_idle() -> None:
    # In order, the environments play, act, left before, leave, start a new episode, come, stay away.
    with RlxPeer(lose_after(2), serve) as peer, vector(peer, "same_step", 7) as client:
        client.init(states(*range(7)), [0, 0, 0, 0, 0, 1, 1])
        client.step([1] * 7, states(*[NAN] * 7), [0, 0, 1, 0, 0, 0, 0], idle=[1, 1, 1, 1, 1, 1, 1])
        lost = states(10, NAN, NAN, NAN, 14, 15, NAN)
        client.step([1] * 7, lost, [0, 0, 0, 1, 1, 0, 0], idle=[0, 1, 1, 1, 0, 0, 1])
        client.step([1] * 7, states(20, 21, 22, NAN, 24, 25, NAN), idle=[0, 0, 0, 1, 0, 0, 1])
        init, step = peer.connections[1].of(rlx.Init, rlx.Step)
        assert client.reset([1] * 7).tolist() == [3, 2, 1, 0, 2, 2, 0]
    assert flags(init.idle) == [0, 1, 1, 1, 0, 0, 1]
    assert flags(init.partial) == [1, 1, 0, 0, 0, 0, 0]
    assert masks(step) == {"first": [0, 1, 1, 0, 0, 0, 0], "idle": [0, 0, 0, 1, 0, 0, 1]}
    assert step.reward.tolist() == [1, 0, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_end_of_a_lost_action_is_dropped(autoreset: str) -> None:
    # In order, the environments leave, end without idle, still act, play.
    with RlxPeer(lose_after(1), serve) as peer, vector(peer, autoreset, 4) as client:
        client.init(states(1, 2, 3, 4))
        client.step([0, 0, 0, 4], states(NAN, NAN, NAN, 5), idle=[1, 1, 1, 0])
        ends = [1, 0, 0, 0], [0, 1, 0, 1]
        client.step([1, 2, 0, 4], states(11, 12, NAN, 14), *ends, states(21, 22, NAN, 24), idle=[1, 0, 1, 0])
        client.step([0, 5, 3, 6], states(31, 32, 33, 34))
        init, dropped, later = peer.connections[1].of(rlx.Init, rlx.Step)
    assert (flags(init.idle), flags(init.partial)) == ([1, 1, 1, 0], [1, 1, 1, 1])
    assert dropped.reward.tolist() == [0, 0, 0, 4]
    if autoreset == "same_step":  # environment 1 starts its next episode
        assert masks(dropped) == {"truncated": [0, 0, 0, 1], "first": [0, 1, 0, 0], "idle": [1, 0, 1, 0]}
        assert numbers_of(dropped.final_observation)[3] == 24  # type: ignore[index]
        assert masks(later) == {"first": [1, 0, 1, 0]}
        assert later.reward.tolist() == [0, 5, 0, 6]
    else:  # its state is the final one
        assert masks(dropped) == {"truncated": [0, 0, 0, 1], "idle": [1, 1, 1, 0]}
        assert masks(later) == {"first": [1, 1, 1, 1]}


def test_only_dropped_truncation_needs_no_final_observation() -> None:
    with RlxPeer(lose_after(1), serve) as peer, vector(peer, "same_step", 2) as client:
        client.init(states(1, 2))
        client.step([0, 2], states(NAN, 5), idle=[1, 0])
        client.step([1, 2], states(NAN, 5), truncated=[1, 0], final_states=states(8, NAN), idle=[1, 0])
        _, step = peer.connections[1].of(rlx.Init, rlx.Step)
    assert (masks(step), step.final_observation) == ({"idle": [1, 0]}, None)


def test_reset_of_a_lost_action_is_not_truncated() -> None:
    with RlxPeer(lose_after(1), serve) as peer, vector(peer, "disabled", 2) as client:
        client.init(states(1, 2))
        client.step([0, 2], states(NAN, 5), idle=[1, 0])
        assert client.reset([1, 2], [1, 0], states(8, 9)).tolist() == [1, 4]
        (reset,) = peer.connections[1].of(rlx.Reset)
    assert (reset.reward.tolist(), reset.truncated) == ([0, 2], None)


def test_next_step_ends_that_are_lost_need_no_reset() -> None:
    """Without `out_of_step`, all episodes end: test_end_lost_in_next_step_is_sent_to_the_new_connection."""
    with RlxPeer(lose_after(1), serve) as peer, vector(peer, "next_step", 4) as client:
        client.init(states(1, 2, 3, 4))
        ends = [True, False, False, False], [False, True, False, False]
        client.step([1, 2, 3, 4], states(11, 12, NAN, 14), *ends, idle=[0, 0, 1, 0])
        client.step([-1, -1, 3, 4], states(20, 21, 22, 23), first=[True, True, False, False])
        init, step = peer.connections[1].of(rlx.Init, rlx.Step)
    assert (flags(init.idle), flags(init.partial)) == ([1, 1, 1, 0], [0, 0, 1, 1])
    assert (masks(step), step.reward.tolist()) == ({"first": [1, 1, 1, 0]}, [0, 0, 0, 4])


def test_server_refuses_if_its_algorithm_has_no_support(processes: Processes, tmp_path: Path) -> None:
    _, address = start_offline_server(processes, tmp_path)
    with (
        VectorClient(address, environments=2, out_of_step=True, **SPACES) as client,  # type: ignore[arg-type]
        pytest.raises(Failure, match="its algorithm offline_algorithm does not"),
    ):
        client.init(states(0, 0))
    with VectorClient(address, environments=2, **SPACES) as client:  # type: ignore[arg-type]
        assert client.init(states(0, 0)).tolist() == [0, 0]


@pytest.mark.parametrize("autoreset", [Autoreset.DISABLED, Autoreset.SAME_STEP, Autoreset.NEXT_STEP])
@pytest.mark.parametrize("cuts", [0.0, 0.06])
def test_every_completed_action_reaches_a_worker_once(
    processes: Processes, tmp_path: Path, autoreset: Autoreset, cuts: float
) -> None:
    """Play with a real server, over connections that are cut before a request or before its answer."""
    journals = tmp_path / "journals"
    journals.mkdir()
    server, address = start_offline_server(
        processes, tmp_path, algorithm={"path": str(ALGORITHM), "folder": str(journals)}
    )
    rng = np.random.default_rng([autoreset, int(100 * cuts)])
    n, lost = 5, 0
    world = TurnWorld([autoreset] * n, rng)
    with (
        CuttingProxy(address) as proxy,
        VectorClient(
            proxy.address,
            environments=n,
            autoreset=autoreset.name.lower(),
            out_of_step=True,
            **TURN_SPACES,  # type: ignore[arg-type]
        ) as client,
    ):
        states, idle = world.begin()
        world.take(client.init(states, idle))
        for _ in range(250):
            kind = rng.choice(["", "request", "answer"], p=[1 - cuts, cuts / 2, cuts / 2])
            if kind == "request":
                proxy.cut()
            elif kind == "answer":
                proxy.cut_at_answer()
            if rng.random() < 0.1:
                rewards, cut, finals, returns = world.reset()
                assert client.reset(rewards, cut, finals).tolist() == returns.tolist()
                states, idle = world.begin()
                actions = client.init(states, idle)
            else:
                made = world.outcomes()
                actions = client.step(
                    made.rewards, made.states, made.terminated, made.truncated, made.finals, idle=made.idle
                )
            if kind:
                world.lose()
                lost += 1
            world.take(actions)
    server.stop()
    entries = [json.loads(line) for path in journals.iterdir() for line in path.read_text().splitlines()]
    assert len(list(journals.iterdir())) == 1 + lost
    assert world.check(entries) > 200
