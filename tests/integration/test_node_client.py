"""The JavaScript client in Node, with its CartPole: real and scripted servers, over TCP and WebSocket."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import relaax.client
from relaax import rlx
from relaax.rlx import ErrorCode
from support.machine import need
from support.processes import Processes, Running
from support.rlx_peer import PeerConnection, RlxPeer, serve
from support.run import Runs
from support.service import PARAMETER_SERVER, RLX_SERVER, Service, status_of, write_service_config

CLIENT = Path(__file__).resolve().parents[2] / "protocol/clients/javascript/examples/cartpole.js"
WEBSOCKET = "--experimental-websocket"  # required by Node 20, accepted by Node 22

PATIENCE = 120.0  # seconds; an idle machine needs a few

StartNode = Callable[..., Running]


@pytest.fixture
def node(processes: Processes) -> StartNode:
    """A function that starts the client: node(ADDRESS, options...)."""
    need("node")

    def start(address: str, *options: str) -> Running:
        return processes.start("node", CLIENT, address, "--autoreset", "disabled", *options)

    return start


def result_of(client: Running) -> tuple[int, float]:
    """Return the number of episodes and their mean return, from the last line of the client."""
    found = re.fullmatch(r"mean of (\d+) episodes: ([\d.]+)", client.lines[-1])
    assert found is not None, client.report()
    return int(found[1]), float(found[2])


def test_node_client_shares_a_model_with_a_gymnasium_client(service: Service, node: StartNode) -> None:
    relaax.client.run("CartPole-v1", service.address, steps=2, seed=1)  # creates the model for these spaces
    before = service.wait_for_no_workers()
    client = node(service.address, "--mode", "train", "--episodes", "5", "--seed", "1")
    assert client.wait(PATIENCE) == 0, client.report()
    count, mean = result_of(client)
    after = service.wait_for_no_workers()
    assert after.episodes - before.episodes == count == 5
    assert 0 < after.global_step - before.global_step <= round(5 * mean)
    assert after.updates > before.updates
    assert client.stderr == ""


def test_node_client_plays_over_websocket(service: Service, processes: Processes, node: StartNode) -> None:
    command = ("node", WEBSOCKET, CLIENT, f"ws://{service.address}/", "--environments", "3", "--episodes", "5")
    client = processes.start(*command)
    if client.wait(PATIENCE) == 9:
        pytest.skip("this Node has no WebSocket: 20.10 or newer has")
    assert client.returncode == 0, client.report()
    assert result_of(client)[0] >= 5
    assert "Experimental" in client.stderr or client.stderr == ""


def test_node_without_websocket_reports_the_way_out(processes: Processes, tmp_path: Path, node: StartNode) -> None:
    bare = tmp_path / "bare.mjs"
    bare.write_text("delete globalThis.WebSocket;\n", "utf-8")
    client = processes.start("node", "--import", bare, CLIENT, "ws://localhost:1/")
    assert client.wait(PATIENCE) == 2, client.report()
    (sentence,) = client.stderr.splitlines()
    assert re.fullmatch(r"ws://localhost:1/: Node [\d.]+ has no WebSocket: use Node 22 .* HOST:PORT .*", sentence)


def test_refused_node_client_prints_the_error_of_the_server(
    processes: Processes, tmp_path: Path, node: StartNode
) -> None:
    config = write_service_config(tmp_path, state_size=[4], action_size=6)
    address = processes.start_server(*RLX_SERVER, "--config", config, "--parameter-server", "127.0.0.1:1")[1]
    client = node(address)
    assert client.wait(PATIENCE) == 2
    (sentence,) = client.stderr.splitlines()
    for words in ("action_size", "6", "Discrete(2)"):
        assert words in sentence
    assert client.lines == []


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "protocol/rlx")
def test_end_of_training_ends_the_node_client(processes: Processes, tmp_path: Path, node: StartNode) -> None:
    service = Service(processes, tmp_path, max_global_step=1000)
    client = node(service.address, "--mode", "train")
    assert client.wait(PATIENCE) == 0, client.report()
    assert "training has finished" in client.lines
    assert result_of(client)[0] > 0
    assert client.stderr == ""
    assert service.rlx_server.wait(PATIENCE) == 0


def test_hello_of_the_node_client_identifies_it(tmp_path: Path, node: StartNode) -> None:
    token = tmp_path / "token"
    token.write_text("a secret\n")
    with RlxPeer(serve) as peer:
        client = node(peer.address, "--mode", "exploit", "--episodes", "1", "--token-file", str(token))
        assert client.wait(PATIENCE) == 0, client.report()
    hello = peer.connections[0].hello
    assert hello.observation_space == rlx.Box(shape=(4,))
    assert hello.action_space == rlx.Discrete(2)
    assert (hello.mode, hello.token, hello.session_id) == (rlx.Mode.EXPLOIT, "a secret", "")
    assert hello.client_name and hello.client_version and hello.environment and hello.host
    assert peer.connections[0].of(rlx.Bye)


def balance(observation: np.ndarray) -> bool:
    """Return whether to push right. The push follows the motion of cart and pole, so that the pole never falls."""
    return bool(observation @ [0.3, 0.6, 10.0, 2.0] > 0)


def push_right(observation: np.ndarray) -> bool:
    """Return True in every state, so that the pole falls."""
    return True


@pytest.mark.parametrize("policy", [balance, push_right])
def test_cartpole_of_node_equals_cartpole_of_gymnasium(node: StartNode, policy: Callable[[np.ndarray], bool]) -> None:
    actions: list[int] = []

    def act(message: rlx.Message, conn: PeerConnection) -> rlx.Leaves:
        conn.send(rlx.Ping(nonce=len(actions)))  # the client must answer it while it waits
        assert isinstance(message, rlx.Init | rlx.Step)
        actions.append(int(policy(message.observation[0][0])))
        return [np.array(actions[-1:])]

    def script(conn: PeerConnection) -> None:
        conn.policy = act
        serve(conn)

    with RlxPeer(script) as peer:
        client = node(peer.address, "--episodes", "1", "--seed", "3")
        assert client.wait(PATIENCE) == 0, client.report()
    conn = peer.connections[0]
    (init,), steps, (reset,) = conn.of(rlx.Init), conn.of(rlx.Step), conn.of(rlx.Reset)
    assert [pong.nonce for pong in conn.of(rlx.Pong)] == list(range(len(actions)))
    assert np.abs(init.observation[0]).max() <= 0.05
    assert result_of(client) == (1, len(actions))

    # Compare single steps: over many steps the rounding to float32 would grow, because the pole is unstable.
    env = gymnasium.make("CartPole-v1")
    env.reset()
    states = [message.observation[0][0] for message in (init, *steps)]
    for step, (state, action) in enumerate(zip(states, actions, strict=True)):
        env.unwrapped.state = state.astype(np.float64)  # type: ignore[attr-defined]
        expected, reward, terminated, truncated, _ = env.step(action)
        if step < len(steps):
            assert (terminated, truncated, steps[step].reward.tolist()) == (False, False, [reward])
            np.testing.assert_allclose(states[step + 1], expected, rtol=1e-5, atol=1e-6)
    assert reset.reward.tolist() == [1.0]
    if policy is balance:
        assert (terminated, truncated, reset.truncated.tolist()) == (False, True, [True])
        np.testing.assert_allclose(reset.final_observation[0][0], expected, rtol=1e-5, atol=1e-6)
    else:
        assert (terminated, truncated, reset.truncated) == (True, False, None)
    env.close()


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "protocol/rlx")
def test_node_client_reconnects_after_temporary_errors(node: StartNode) -> None:
    times: list[float] = []

    def refuse_as_overloaded(conn: PeerConnection) -> None:
        conn.expect(rlx.Hello)
        times.append(time.monotonic())
        conn.fail(ErrorCode.OVERLOADED, "no room for now", retry_after=1.5)

    def disconnect_in_the_second_episode(conn: PeerConnection) -> None:
        conn.expect(rlx.Hello)
        times.append(time.monotonic())
        conn.send(rlx.Welcome(session_id="the-first", algorithm="scripted"))
        while not conn.of(rlx.Reset):  # an episode, and a part of the next one
            conn.answer()
        conn.answer()
        conn.receive()
        conn.kill()

    with RlxPeer(refuse_as_overloaded, disconnect_in_the_second_episode, serve) as peer:
        client = node(peer.address, "--episodes", "2")
        assert client.wait(PATIENCE) == 0, client.report()
    assert result_of(client)[0] == 2
    refused, lost = client.stderr.splitlines()
    assert "no room for now; trying again in" in refused
    assert re.match("RLX: (the connection is lost|the server's stream ended)", lost)
    assert times[1] - times[0] >= 1.5
    _, second, third = peer.connections
    assert (second.hello.session_id, third.hello.session_id) == ("", "the-first")
    assert [len(conn.of(rlx.Init)) for conn in (second, third)] == [2, 1], "the interrupted episode is not continued"
    assert third.of(rlx.Init)[0].partial is None


@pytest.mark.slow
@pytest.mark.checks("protocol/clients/javascript", "protocol/rlx")
@pytest.mark.timeout(600)
def test_node_client_plays_a_model_that_gymnasium_trained(
    runs: Runs, processes: Processes, node: StartNode, short: bool
) -> None:
    target = 300 if short else 475
    run = runs.start("--clients", "4", "--target-return", str(target), "--seed", "11", "--no-progress")
    assert run.running.wait(280) == 0, run.running.report()
    before = run.summary["env_steps"]

    config = ("--config", run.directory / "configuration.yaml", "--bind", "127.0.0.1:0")
    checkpoints = run.directory / "checkpoints"
    _, parameter_server = processes.start_server(*PARAMETER_SERVER, *config, "--checkpoint-dir", checkpoints)
    _, address = processes.start_server(*RLX_SERVER, *config, "--parameter-server", parameter_server)
    client = node(address, "--mode", "exploit", "--episodes", "20", "--seed", "1")
    assert client.wait(PATIENCE) == 0, client.report()
    count, mean = result_of(client)
    assert count == 20
    assert mean >= target
    assert status_of(parameter_server).global_step == before, "exploit mode does not train"
