"""Benchmarks of a step between an environment and its agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from relaax import rlx
from relaax.algorithm_base import AgentBase, AgentContext, Leaves
from relaax.algorithm_base import StepResult as AgentStep
from relaax.client import VectorClient
from relaax.rlx.transitions import Sender
from relaax.rlx.wire.codecs import Codec, codec_named
from relaax.server.rlx_server.workers.session import AgentSession
from support.offline_client import OfflineClient
from support.rlx_pair import Pair, batch
from support.rlx_peer import RlxPeer, serve

# Name to observation space and number of environments.
SHAPES = {
    "cartpole": (rlx.Box(shape=(4,)), 1),
    "cartpole-8": (rlx.Box(shape=(4,)), 8),
    "atari": (rlx.Box(0, 255, (84, 84), np.uint8), 1),
    "atari-8": (rlx.Box(0, 255, (84, 84), np.uint8), 8),
}
ACTIONS = rlx.Discrete(18)

codecs = pytest.mark.parametrize("codec", ["protobuf", "json"])
shapes = pytest.mark.parametrize("shape", SHAPES)


def step_of(space: rlx.Space, environments: int) -> rlx.Step:
    rng = np.random.default_rng(1)
    observation = [
        rng.integers(0, 256, leaf.shape).astype(leaf.dtype) if leaf.dtype == np.uint8 else leaf
        for leaf in batch(space, environments)
    ]
    return rlx.Step(np.ones(environments), observation)


def hello_of(shape: str) -> rlx.Hello:
    space, environments = SHAPES[shape]
    return rlx.Hello(space, ACTIONS, environments, (rlx.Autoreset.SAME_STEP,))


def agreed(codec: str, shape: str) -> Codec:
    """Return the codec in its state after the hello."""
    made = codec_named(codec)
    made.configure(hello_of(shape))
    return made


@codecs
@shapes
def test_encode_step(benchmark: BenchmarkFixture, codec: str, shape: str) -> None:
    message = step_of(*SHAPES[shape])
    assert benchmark(agreed(codec, shape).encode, message, Sender.CLIENT)


@codecs
@shapes
def test_decode_step(benchmark: BenchmarkFixture, codec: str, shape: str) -> None:
    written = agreed(codec, shape)
    payload = written.encode(step_of(*SHAPES[shape]), Sender.CLIENT)
    assert isinstance(benchmark(written.decode, payload, Sender.CLIENT), rlx.Step)


@codecs
def test_encode_actions(benchmark: BenchmarkFixture, codec: str) -> None:
    message = rlx.Actions([np.arange(8)])
    assert benchmark(agreed(codec, "atari-8").encode, message, Sender.SERVER)


@codecs
def test_decode_actions(benchmark: BenchmarkFixture, codec: str) -> None:
    written = agreed(codec, "atari-8")
    payload = written.encode(rlx.Actions([np.arange(8)]), Sender.SERVER)
    assert isinstance(benchmark(written.decode, payload, Sender.SERVER), rlx.Actions)


@codecs
@shapes
def test_connection_round_trip(benchmark: BenchmarkFixture, codec: str, shape: str) -> None:
    """Send a step and its actions through the state machines and checks of both ends, in memory."""
    pair = Pair(codec)
    pair.play(hello_of(shape))
    step = step_of(*SHAPES[shape])
    actions = rlx.Actions([np.zeros(SHAPES[shape][1], np.int64)])

    def round_trip() -> Any:
        pair.server.receive_data(pair.client.send(step))
        pair.server.next_event()
        pair.client.receive_data(pair.server.send(actions))
        return pair.client.next_event()

    assert isinstance(benchmark(round_trip), rlx.Actions)


@shapes
def test_client_step(benchmark: BenchmarkFixture, shape: str) -> None:
    """Send a client's step over a real socket to a server thread that answers at once with constant actions."""
    space, environments = SHAPES[shape]
    step = step_of(space, environments)
    states = step.observation[0]
    with (
        RlxPeer(serve) as peer,
        VectorClient(peer.address, environments=environments, observation_space=space, action_space=ACTIONS) as client,
    ):
        client.init(states)
        actions = benchmark(client.step, step.reward, states)
    assert actions.shape == (environments,)


class Idle(AgentBase):
    """An agent whose actions are always 0."""

    def reset(self, observations: Leaves) -> Leaves:
        return [np.zeros(self.context.environments, np.int64)]

    def step(self, step: AgentStep) -> Leaves:
        return [np.zeros(self.context.environments, np.int64)]


@shapes
def test_session_step(benchmark: BenchmarkFixture, shape: str) -> None:
    """Measure a worker's work for a step, without reading the message and without the agent."""
    hello = hello_of(shape)
    parameters = OfflineClient()
    context = AgentContext(
        observation_space=hello.observation_space,
        action_space=ACTIONS,
        environments=hello.environments,
        actors=tuple(range(hello.environments)),
        seed=0,
        exploit=False,
        parameters=parameters,
        metrics=parameters.metrics,
    )
    pair = Pair()
    pair.open(hello)
    session = AgentSession(pair.server, Idle(None, context), parameters.metrics)
    step = step_of(*SHAPES[shape])
    session.init(rlx.Init(step.observation))
    assert isinstance(benchmark(session.step, step), rlx.Actions)
