"""Acting and gradients: on the host's engine, in numpy and in TensorFlow, with the same outcome."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from relaax.algorithm_base import Box, load_algorithm
from relaax.algorithm_base.testing import RandomEnvironments, make_agent
from relaax.nn.distributions import Categorical, Gaussian, Policy
from relaax.nn.networks import orthogonal_parameters
from relaax.rlx import Discrete

DA3C = load_algorithm("da3c", Path())
PACKAGE = DA3C.Agent.__module__.rpartition(".")[0]
MODEL, HOST, TENSORFLOW, NUMPY, NETWORK, ROLLOUT = (
    importlib.import_module(f"{PACKAGE}.{name}")
    for name in ("model", "host_model", "tensorflow_model", "numpy_model", "network", "rollout")
)
POLICY = Categorical(3)
IMAGE = Box(0, 255, shape=(84, 84), dtype=np.uint8)
SMALL_IMAGE = Box(0, 255, shape=(12, 14), dtype=np.uint8)
VECTOR = Box(-1, 1, shape=(4,))
SMALL = {"network": {"convolutions": [{"filters": 3, "kernel": 4, "stride": 2}], "dense": [5]}}
DENSE = {"network": {"dense": [5]}}


def made(
    kind: Any,
    space: Box = IMAGE,
    policy: Policy = POLICY,
    shape: tuple[int | None, int | None] = (5, None),
    options: Mapping[str, Any] = MappingProxyType({}),
    **keys: Any,
) -> Any:
    """A model with random parameters."""
    config = DA3C.configure({"path": "da3c"} | keys)
    spec = NETWORK.actor_critic(config, space, policy)
    model = kind(spec, policy, config, space.dtype, shape, **options)
    model.set_parameters(parameters_of(spec))
    return model


def spec_of(space: Box = IMAGE, policy: Policy = POLICY, **keys: Any) -> Any:
    return NETWORK.actor_critic(DA3C.configure({"path": "da3c"} | keys), space, policy)


def parameters_of(spec: Any, seed: int = 3) -> np.ndarray:
    vector = orthogonal_parameters(spec, seed, {})
    return vector + np.random.default_rng(seed).normal(0, 0.05, vector.shape).astype(np.float32)  # biases too


def inputs_of(spec: Any, *shape: int, seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if len(spec.inputs) == 3:
        return rng.integers(0, 256, (*shape, *spec.inputs), dtype=np.uint8)
    return rng.standard_normal((*shape, *spec.inputs)).astype(np.float32)


def batch_of(spec: Any, policy: Policy, steps: int, environments: int, seed: int = 6) -> Any:
    shape, rng = (steps, environments), np.random.default_rng(seed)
    if isinstance(policy, Categorical):
        actions: np.ndarray = rng.integers(0, policy.heads["policy"], shape)
    else:
        actions = rng.normal(size=(*shape, *policy.action_shape)).astype(np.float32)
    return ROLLOUT.Batch(
        inputs=inputs_of(spec, *shape, seed=seed),
        actions=actions,
        advantages=rng.normal(size=shape).astype(np.float32),
        targets=rng.normal(size=shape).astype(np.float32),
        mask=(rng.random(shape) < 0.8).astype(np.float32),
        state=np.zeros((environments, spec.state_size), np.float32),
        restart=rng.random(shape) < 0.2,
    )


def no_state(count: int) -> np.ndarray:
    return np.zeros((count, 0), np.float32)


def close(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Gradients and statistics."""
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)
    largest = np.abs(expected[0]).max()
    assert largest > 1e-3
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4 * largest)


CASES = {
    "vector": (VECTOR, POLICY, DENSE),
    "tanh": (VECTOR, POLICY, {"network": {"dense": [5, 4], "activation": "tanh"}}),
    "separate": (VECTOR, POLICY, {"network": {"dense": [5], "separate": True}}),
    "gaussian": (VECTOR, Gaussian(2), DENSE),
    "spherical": (VECTOR, Gaussian(3, spherical=True), DENSE),
    "image": (SMALL_IMAGE, POLICY, SMALL),
    "image, history of 1": (SMALL_IMAGE, POLICY, SMALL | {"history_len": 1}),
    "image, history of 16": (SMALL_IMAGE, POLICY, SMALL | {"history_len": 16}),
    "image without convolutions": (SMALL_IMAGE, POLICY, {"network": {"convolutions": [], "dense": [5]}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("clipping", [None, 0.01, 1000.0])
def test_the_host_finds_tensorflows_gradient(case: str, clipping: float | None) -> None:
    space, policy, keys = CASES[case]
    keys = keys | {"RMSProp": {"gradient_norm_clipping": clipping}}
    batch = batch_of(spec_of(space, policy, **keys), policy, 5, 3)
    host, tensorflow = (made(kind, space, policy, **keys) for kind in (HOST.HostModel, TENSORFLOW.TensorFlowModel))
    close(host.gradient(batch), tensorflow.gradient(batch))


@pytest.mark.parametrize("rows", [[], [0], [4], [1, 2], [0, 1, 2, 3, 4], [4, 0, 2]])
@pytest.mark.parametrize("case", ["vector", "image"])
def test_it_makes_no_difference_what_was_kept(case: str, rows: list[int]) -> None:
    space, policy, keys = CASES[case]
    spec = spec_of(space, policy, **keys)
    model = made(HOST.HostModel, space, policy, (5, 3), **keys)
    batch, another = (batch_of(spec, policy, 5, 3, seed) for seed in (6, 7))
    forwards = Counted(model._network.forward)
    model._network.forward = forwards
    for row in rows:
        model.act(batch.inputs[row], no_state(3), keep=row)
        model.act(another.inputs[row], no_state(3))  # as for the value of a final observation
    acted = forwards.examples
    found = model.gradient(batch)
    assert forwards.examples - acted == 3 * (5 - len(rows))
    expected = made(HOST.HostModel, space, policy, (5, 3), **keys).gradient(batch)
    close(found, expected)
    close(model.gradient(another), made(HOST.HostModel, space, policy, (5, 3), **keys).gradient(another))


def test_what_was_kept_with_other_parameters_is_computed_anew() -> None:
    model, spec = made(HOST.HostModel, VECTOR, shape=(5, 3), **DENSE), spec_of(VECTOR, **DENSE)
    batch = batch_of(spec, POLICY, 5, 3)
    for row in range(5):
        if row == 2:
            model.set_parameters(parameters_of(spec, 8))
        model.act(batch.inputs[row], no_state(3), keep=row)
    reference = made(HOST.HostModel, VECTOR, **DENSE)
    reference.set_parameters(parameters_of(spec, 8))
    close(model.gradient(batch), reference.gradient(batch))


def test_a_row_behind_the_batch_takes_nothing_from_the_others() -> None:
    """Where the environments step before the gradient, what begins the next rollout was acted on already."""
    model, spec = made(HOST.HostModel, VECTOR, shape=(5, 3), **DENSE), spec_of(VECTOR, **DENSE)
    batch = batch_of(spec, POLICY, 5, 3)
    for row in range(5):
        model.act(batch.inputs[row], no_state(3), keep=row)
    model.act(inputs_of(spec, 3), no_state(3), keep=5)
    forwards = model._network.forward = Counted(model._network.forward)
    close(model.gradient(batch), made(HOST.HostModel, VECTOR, **DENSE).gradient(batch))
    assert forwards.examples == 0


def test_numbers_of_environments_and_steps_may_vary() -> None:
    model, spec = made(HOST.HostModel, VECTOR, shape=(None, None), **DENSE), spec_of(VECTOR, **DENSE)
    reference = made(HOST.HostModel, VECTOR, shape=(None, None), **DENSE)
    for steps, environments in [(3, 4), (1, 1), (700, 1), (3, 2), (90, 7)]:
        batch = batch_of(spec, POLICY, steps, environments)
        for row in range(0, min(steps, 80), 2):
            model.act(batch.inputs[row], no_state(environments), keep=row)
        close(model.gradient(batch), reference.gradient(batch))


@pytest.mark.parametrize("kept", [1, 4, 8])
def test_a_batch_is_learned_from_in_parts(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Parts that begin within a row, and rows for which there is no room."""
    space, policy, keys = CASES["image"]
    spec = spec_of(space, policy, **keys)
    batch = batch_of(spec, policy, 5, 3)
    expected = made(HOST.HostModel, space, policy, **keys).gradient(batch)
    monkeypatch.setattr(HOST, "EXAMPLES", 4)
    probe = made(HOST.HostModel, space, policy, (5, 3), **keys)
    monkeypatch.setattr(HOST, "KEPT_BYTES", kept * probe._network.example_bytes)
    model = made(HOST.HostModel, space, policy, (5, 3), **keys)
    for row in range(5):
        model.act(batch.inputs[row], no_state(3), keep=row)
    close(model.gradient(batch), expected)


def test_gradients_and_outputs_once_given_never_change() -> None:
    model, spec = made(HOST.HostModel, VECTOR, shape=(5, 3), **DENSE), spec_of(VECTOR, **DENSE)
    given = []
    for seed in range(12):
        batch = batch_of(spec, POLICY, 5, 3, seed)
        outputs, _ = model.act(batch.inputs[0], no_state(3), keep=0)
        given += [(array, array.copy()) for array in (*outputs.values(), *model.gradient(batch))]
    for array, copy in given:
        np.testing.assert_array_equal(array, copy)


def test_what_is_not_finite_is_no_warning_and_does_not_vanish() -> None:
    model, spec = made(HOST.HostModel, VECTOR, **DENSE), spec_of(VECTOR, **DENSE)
    batch = batch_of(spec, POLICY, 5, 3)
    batch.advantages[2, 1] = np.nan
    batch.mask[2, 1] = 1
    gradient, statistics = model.gradient(batch)
    assert np.isnan(gradient).any() and np.isnan(statistics[-1])


@pytest.mark.parametrize("space", [VECTOR, SMALL_IMAGE], ids=["vector", "image"])
def test_without_an_lstm_tensorflow_is_not_needed(monkeypatch: pytest.MonkeyPatch, space: Box) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("TensorFlow was called")

    for name in ("function", "constant", "convert_to_tensor", "split", "reshape", "TensorSpec"):
        monkeypatch.setattr(tf, name, refuse)
    keys = SMALL if space is SMALL_IMAGE else DENSE
    agent, bridge = make_agent(DA3C, DA3C.configure({"path": "da3c"} | keys), space, Discrete(3), environments=2)
    world = RandomEnvironments(space, Discrete(3), 2)
    actions = agent.reset(world.reset())
    for _ in range(12):
        actions = agent.step(world.step(actions))
        agent.learn()
    assert len(bridge.pushes) == 2


def test_who_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(space: Box, learns: bool = True, **keys: Any) -> Any:
        return type(made(MODEL.Model, space, options={"learns": learns}, **keys)._actor)

    for gpu in (False, True):
        monkeypatch.setattr(MODEL, "computes_on_gpu", lambda gpu=gpu: gpu)
        assert engine(VECTOR) is HOST.HostModel
        assert engine(IMAGE) is (TENSORFLOW.TensorFlowModel if gpu else HOST.HostModel)
        assert engine(VECTOR, lstm=True) is TENSORFLOW.TensorFlowModel
        assert engine(VECTOR, learns=False, lstm=True) is NUMPY.NumpyModel
        assert engine(IMAGE, learns=False) is (TENSORFLOW.TensorFlowModel if gpu else NUMPY.NumpyModel)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_who_only_acts_acts_as_who_learns(case: str, lstm: bool) -> None:
    space, policy, keys = CASES[case]
    keys = keys | {"lstm": lstm}
    spec = spec_of(space, policy, **keys)
    learner, actor = (made(MODEL.Model, space, policy, options={"learns": learns}, **keys) for learns in (True, False))
    state = np.random.default_rng(5).normal(size=(50, spec.state_size)).astype(np.float32)
    inputs = inputs_of(spec, 50)
    (outputs, after), (expected, expected_after) = (model.act(inputs, state) for model in (actor, learner))
    np.testing.assert_allclose(after, expected_after, atol=1e-5)
    for head in spec.heads:
        np.testing.assert_allclose(outputs[head], expected[head], rtol=1e-4, atol=1e-5)
    if isinstance(policy, Categorical):
        np.testing.assert_array_equal(policy.mode(outputs), policy.mode(expected))


class Counted:
    """Counts the calls of a function, and the examples that it is given."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = self.examples = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        self.examples += len(arguments[0])
        return self.function(*arguments)


def counted(model: Any) -> Counted:
    """How often the model acts in TensorFlow."""
    model._act = Counted(model._act)
    return model._act  # type: ignore[no-any-return]


def test_one_image_more_than_the_bound_makes_no_difference() -> None:
    model, spec = made(TENSORFLOW.TensorFlowModel, lstm=True), spec_of(lstm=True)
    calls = counted(model)
    bound = TENSORFLOW.IMAGES_FOR_NUMPY
    inputs = inputs_of(spec, bound + 1)
    state = np.random.default_rng(5).normal(size=(bound + 1, spec.state_size)).astype(np.float32)
    few, few_after = model.act(inputs[:bound], state[:bound])
    assert calls.calls == 0
    many, many_after = model.act(inputs, state)
    assert calls.calls == 1
    for head, width in spec.heads.items():
        assert many[head].shape == (bound + 1, width)
        np.testing.assert_allclose(few[head], many[head][:bound], atol=1e-5)
    np.testing.assert_allclose(few_after, many_after[:bound], atol=1e-5)


def test_tensorflow_acts_on_the_newest_parameters_too() -> None:
    model, spec = made(TENSORFLOW.TensorFlowModel), spec_of()
    inputs, state = inputs_of(spec, TENSORFLOW.IMAGES_FOR_NUMPY + 1), no_state(TENSORFLOW.IMAGES_FOR_NUMPY + 1)
    before, _ = model.act(inputs, state)
    model.set_parameters(np.zeros(spec.layout().size, np.float32))
    after, _ = model.act(inputs, state)
    assert before["policy"].any()
    assert not after["policy"].any()


def test_on_a_gpu_tensorflow_acts_on_every_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TENSORFLOW, "computes_on_gpu", lambda: True)
    model = made(TENSORFLOW.TensorFlowModel)
    calls = counted(model)
    image = inputs_of(spec_of(), 1)
    elsewhere = model.act(image, no_state(1))[0]
    assert calls.calls == 1
    for head, here in made(HOST.HostModel).act(image, no_state(1))[0].items():
        np.testing.assert_allclose(here, elsewhere[head], atol=1e-5)


def test_without_convolutions_numpy_acts_on_any_number() -> None:
    model = made(TENSORFLOW.TensorFlowModel, VECTOR, lstm=True)
    calls = counted(model)
    model.act(np.zeros((1000, 4), np.float32), np.zeros((1000, 512), np.float32))
    assert calls.calls == 0
