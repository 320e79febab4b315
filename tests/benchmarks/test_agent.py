"""Benchmarks of an agent's computation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.observations import FrameStack
from relaax.algorithm_base.testing import RandomEnvironments, make_agent
from relaax.nn.host.network import Activations, HostNetwork
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.numpy_actor import forward_numpy
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.nn.tensorflow_engine import forward
from relaax.nn.tensorflow_loading import tf
from relaax.rlx import Box, Discrete

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


@pytest.mark.parametrize("environments", [1, 8])
@pytest.mark.parametrize("spec", [SMALL, ATARI], ids=["small", "atari"])
def test_forward_of_the_host(benchmark: BenchmarkFixture, spec: NetworkSpec, environments: int) -> None:
    """Compare with `test_forward_numpy`. The Atari inputs are uint8."""
    network = host_network(spec)
    activations = Activations(environments, network.sizes)
    inputs = inputs_of(spec, environments)
    benchmark(network.forward, inputs, activations, 0)
    assert activations.layers[0][-1].any()


@pytest.mark.parametrize("engine", ["host, kept activations", "host, repeated forward", "tensorflow"])
@pytest.mark.parametrize(("steps", "environments"), [(5, 1), (20, 1), (20, 8)])
@pytest.mark.parametrize("spec", [SMALL, ATARI], ids=["small", "atari"])
def test_gradient(benchmark: BenchmarkFixture, spec: NetworkSpec, steps: int, environments: int, engine: str) -> None:
    """Compute the gradient of the sum of squares of all outputs.

    "host, kept activations" uses the results of an earlier forward pass. "host, repeated forward" repeats the pass.
    `make benchmarks` gives TensorFlow one thread, like a worker.
    """
    layout, count = spec.layout(), steps * environments
    inputs = inputs_of(spec, count)
    if engine == "tensorflow":
        function = tensorflow_gradient(spec, steps, environments)
        flat, given = tf.constant(orthogonal_parameters(spec, 1, GAINS)), tf.constant(inputs)
        assert benchmark(lambda: function(flat, given).numpy()).shape == (layout.size,)
        return
    network = host_network(spec)
    activations, found = Activations(count, network.sizes), np.zeros(layout.size, np.float32)
    network.forward(inputs, activations, 0)

    def gradient() -> None:
        if engine == "host, repeated forward":
            network.forward(inputs, activations, 0)
        slopes = {head: 2 * output for head, output in network.outputs(activations, 0, count).items()}
        network.backward(inputs, activations, 0, slopes, found, accumulate=False)

    benchmark(gradient)
    assert found.any()


def host_network(spec: NetworkSpec) -> HostNetwork:
    network = HostNetwork(spec)
    network.set_parameters(orthogonal_parameters(spec, 1, GAINS), pixels=bool(spec.convolutions))
    return network


def inputs_of(spec: NetworkSpec, count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    if spec.convolutions:
        return rng.integers(0, 256, (count, *spec.inputs), dtype=np.uint8)
    return rng.random((count, *spec.inputs), np.float32)


def tensorflow_gradient(spec: NetworkSpec, steps: int, environments: int) -> Any:
    """Return a function of the flat parameters and of inputs [steps * environments, ...]."""
    layout = spec.layout()

    @tf.function(autograph=False)
    def gradient(flat: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
        if inputs.dtype == tf.uint8:
            inputs = tf.cast(inputs, tf.float32) / 255.0
        with tf.GradientTape() as tape:
            tape.watch(flat)
            parts = tf.split(flat, list(layout.sizes))
            shapes = layout.shapes.values()
            tensors = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
            named = dict(zip(layout.shapes, tensors, strict=True))
            inputs = tf.reshape(inputs, [steps, environments, *spec.inputs])
            no_restart = tf.zeros([steps, environments], tf.bool)
            outputs, _ = forward(spec, named, inputs, tf.zeros([environments, 0]), no_restart)
            loss = tf.add_n([tf.reduce_sum(tf.square(output)) for output in outputs.values()])
        return tape.gradient(loss, flat)

    return gradient


def test_rollout_of_da3c(benchmark: BenchmarkFixture) -> None:
    """20 steps of 8 Atari environments: stack frames, sample actions, compute one gradient."""
    algorithm = load_algorithm(str(ROOT / "algorithms" / "da3c"), ROOT)
    config = algorithm.configure({"path": "da3c", "episode_len": 20, "history_len": 4})
    spaces = (Box(0, 255, (84, 84), np.uint8), Discrete(18))
    agent, parameters = make_agent(algorithm, config, *spaces, environments=8)
    environments = RandomEnvironments(*spaces, 8, end_probability=0.0)
    step = environments.step(
        agent.reset(environments.reset())
    )  # the same step each time: generating frames is not measured

    def rollout() -> int:
        parameters.pushes.clear()  # it keeps every gradient
        for _ in range(20):
            agent.step(step)
            agent.learn()
        return len(parameters.pushes)

    assert benchmark(rollout) == 1
    agent.close()
