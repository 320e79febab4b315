"""What an agent computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from pytest_benchmark.fixture import BenchmarkFixture

from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.history import FrameStack
from relaax.algorithm_base.testing import RandomEnvironments, make_agent
from relaax.rlx import Box, Discrete
from relaax.tf.networks import Convolution, NetworkSpec, forward, forward_numpy, orthogonal_parameters

ROOT = Path(__file__).resolve().parents[2]
ATARI = NetworkSpec(
    inputs=(84, 84, 4),
    heads={"policy": 18, "value": 1},
    dense=(256,),
    convolutions=(Convolution(16, 8, 4), Convolution(32, 4, 2)),
)
SMALL = NetworkSpec(inputs=(4,), heads={"policy": 2, "value": 1}, dense=(64, 64), activation="tanh")
LSTM = NetworkSpec(inputs=(3,), heads={"policy": 2, "value": 1}, dense=(128,), activation="tanh", lstm=128)
GAINS = {"policy": 0.01, "value": 1.0}


@pytest.mark.parametrize("environments", [1, 8])
def test_frame_stack(benchmark: BenchmarkFixture, environments: int) -> None:
    stack = FrameStack(environments, (84, 84), np.uint8, 4)
    frames = np.random.default_rng(0).integers(0, 256, (environments, 84, 84)).astype(np.uint8)
    stack.reset(frames)
    stacked = benchmark(stack.push, frames, np.zeros(environments, np.bool_))
    assert stacked.shape == (environments, 84, 84, 4)


@pytest.mark.parametrize("environments", [1, 8])
@pytest.mark.parametrize("spec", [SMALL, LSTM, ATARI], ids=["small", "lstm", "atari"])
def test_forward_numpy(benchmark: BenchmarkFixture, spec: NetworkSpec, environments: int) -> None:
    views = spec.layout().views(orthogonal_parameters(spec, 1, GAINS))
    inputs = np.random.default_rng(0).random((environments, *spec.inputs), np.float32)
    state = np.zeros((environments, spec.state_size), np.float32)
    outputs, _ = benchmark(forward_numpy, spec, views, inputs, state)
    assert outputs["value"].shape == (environments, 1)


@pytest.mark.parametrize(("steps", "environments"), [(5, 1), (20, 1), (20, 8)])
def test_gradient_of_the_atari_network(benchmark: BenchmarkFixture, steps: int, environments: int) -> None:
    """Of a sum of squares of its outputs. `make benchmarks` gives TensorFlow one thread, as a worker does."""
    layout = ATARI.layout()

    @tf.function(autograph=False)
    def gradient(flat: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(flat)
            parts = tf.split(flat, list(layout.sizes))
            shapes = layout.shapes.values()
            tensors = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
            named = dict(zip(layout.shapes, tensors, strict=True))
            state = tf.zeros([inputs.shape[1], 0])
            outputs, _ = forward(ATARI, named, inputs, state, tf.zeros(inputs.shape[:2], tf.bool))
            loss = tf.add_n([tf.reduce_sum(tf.square(output)) for output in outputs.values()])
        return tape.gradient(loss, flat)

    flat = tf.constant(orthogonal_parameters(ATARI, 1, GAINS))
    inputs = tf.constant(np.random.default_rng(0).random((steps, environments, *ATARI.inputs), np.float32))
    found = benchmark(lambda: gradient(flat, inputs).numpy())
    assert found.shape == (layout.size,)


def test_rollout_of_da3c(benchmark: BenchmarkFixture) -> None:
    """20 steps of 8 Atari environments: frames stacked, actions drawn, one gradient."""
    algorithm = load_algorithm(str(ROOT / "algorithms" / "da3c"), ROOT)
    config = algorithm.configure({"path": "da3c", "episode_len": 20, "history_len": 4})
    spaces = (Box(0, 255, (84, 84), np.uint8), Discrete(18))
    agent, bridge = make_agent(algorithm, config, *spaces, environments=8)
    world = RandomEnvironments(*spaces, 8, end_probability=0.0)
    step = world.step(agent.reset(world.reset()))  # the same again and again: drawing frames is not what is measured

    def rollout() -> int:
        bridge.pushes.clear()  # it remembers every gradient
        for _ in range(20):
            agent.step(step)
        return len(bridge.pushes)

    assert benchmark(rollout) == 1
    agent.close()
