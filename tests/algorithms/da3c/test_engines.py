"""The host engine, NumPy and TensorFlow give the same outputs and gradients for da3c's networks and loss."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, MultiBinary, Space, load_algorithm
from relaax.algorithm_base.network import actor_critic_network
from relaax.algorithm_base.rollout import Batch
from relaax.algorithm_base.testing import RandomEnvironments, make_agent
from relaax.nn import engine as engines
from relaax.nn.distributions import Bernoulli, Categorical, Composite, Distribution, Gaussian, MultiCategorical
from relaax.nn.host import engine as host
from relaax.nn.host.engine import HostEngine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.numpy_actor import NumpyActor
from relaax.nn.tensorflow_engine import TensorFlowEngine
from relaax.nn.tensorflow_loading import tf
from relaax.optim.clipping import clip_by_norm
from relaax.rlx import Discrete
from support.slow_parameters import fast_and_slow

DA3C = load_algorithm("da3c", Path())
PACKAGE = DA3C.Agent.__module__.rpartition(".")[0]
LOSS = importlib.import_module(".loss", PACKAGE)
POLICY = Categorical(3)
MIXED = Composite([Gaussian(2), Categorical(3), MultiCategorical((2, 4)), Bernoulli(2)], [0.5, 2.0, 0.0, 1.0])
IMAGE = Box(0, 255, shape=(84, 84), dtype=np.uint8)
SMALL_IMAGE = Box(0, 255, shape=(12, 14), dtype=np.uint8)
VECTOR = Box(-1, 1, shape=(4,))
BESIDE = Dict({"bits": MultiBinary(3), "camera": Box(0, 255, shape=(16, 18), dtype=np.uint8)})
SMALL = {"network": {"convolutions": [{"filters": 3, "kernel": 4, "stride": 2}], "dense": [5]}}
DENSE = {"network": {"dense": [5]}}


class Model:
    """An engine with random parameters and the loss of da3c."""

    def __init__(self, engine: Any, spec: Any, policy: Distribution, config: Any) -> None:
        self.engine, self.policy, self.config = engine, policy, config
        engine.set_parameters(parameters_of(spec))
        self.act, self.set_parameters = engine.act, engine.set_parameters

    def gradient(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        loss = LOSS.ActorCriticLoss(self.config, self.policy, batch)
        gradient = self.engine.gradient(batch.inputs, batch.state, batch.restart, loss)
        norm = clip_by_norm(gradient, self.config.gradient_norm_clipping)
        return gradient, np.array([*loss.means.values(), norm])


def made(
    kind: Any,
    space: Space = IMAGE,
    policy: Distribution = POLICY,
    shape: tuple[int | None, int | None] = (5, None),
    **keys: Any,
) -> Model:
    config = DA3C.configure({"path": "da3c"} | keys)
    spec = actor_critic_network(config, space, policy)
    dtype = inputs_of(spec, 1).dtype
    engine = kind(spec, dtype, shape) if kind is HostEngine else kind(spec, dtype)
    return Model(engine, spec, policy, config)


def spec_of(space: Space = IMAGE, policy: Distribution = POLICY, **keys: Any) -> Any:
    return actor_critic_network(DA3C.configure({"path": "da3c"} | keys), space, policy)


def parameters_of(spec: Any, seed: int = 3) -> np.ndarray:
    vector = orthogonal_parameters(spec, seed, {})
    return vector + np.random.default_rng(seed).normal(0, 0.05, vector.shape).astype(np.float32)  # biases too


def inputs_of(spec: Any, *shape: int, seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if len(spec.inputs) == 3:
        return rng.integers(0, 256, (*shape, *spec.inputs), dtype=np.uint8)
    return rng.standard_normal((*shape, *spec.inputs)).astype(np.float32)


def batch_of(spec: Any, policy: Distribution, steps: int, environments: int, seed: int = 6) -> Any:
    shape, rng = (steps, environments), np.random.default_rng(seed)
    nothing = {head: np.zeros((steps * environments, width), np.float32) for head, width in policy.heads.items()}
    return Batch(
        inputs=inputs_of(spec, *shape, seed=seed),
        actions=policy.sample(nothing, rng).reshape(*shape, *policy.action_shape),
        advantages=rng.normal(size=shape).astype(np.float32),
        targets=rng.normal(size=shape).astype(np.float32),
        mask=(rng.random(shape) < 0.8).astype(np.float32),
        state=rng.normal(size=(environments, spec.state_size)).astype(np.float32),
        restart=rng.random(shape) < 0.2,
    )


def masked(batch: Batch, policy: Distribution) -> Batch:
    """Return a copy in which some actions are not valid, with other actions."""
    rng, shape = np.random.default_rng(7), batch.restart.shape
    valid = [rng.random((*shape, choices)) < 0.5 for choices in policy.choices]
    for each in valid:
        each[..., 0] |= ~each.any(axis=-1)
    mask = np.concatenate(valid, axis=-1)
    flat = mask.reshape(-1, mask.shape[-1])
    outputs = {head: np.zeros((len(flat), width), np.float32) for head, width in policy.heads.items()}
    actions = policy.sample(policy.masked(outputs, flat), rng).reshape(*shape, *policy.action_shape)
    return replace(batch, valid=mask, actions=actions)


def no_state(count: int) -> np.ndarray:
    return np.zeros((count, 0), np.float32)


def close(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    """Check that two pairs (gradient, statistics) are almost equal."""
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-6)
    largest = np.abs(expected[0]).max()
    assert largest > 1e-4
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4 * largest)


CASES = {
    "vector": (VECTOR, POLICY, DENSE),
    "tanh": (VECTOR, POLICY, {"network": {"dense": [5, 4], "activation": "tanh"}}),
    "separate": (VECTOR, POLICY, {"network": {"dense": [5], "separate": True}}),
    "gaussian": (VECTOR, Gaussian(2), DENSE),
    "spherical": (VECTOR, Gaussian(3, spherical=True), DENSE),
    "mixed": (VECTOR, MIXED, DENSE),
    "mixed, separate": (VECTOR, MIXED, {"network": {"dense": [5], "separate": True}}),
    "mixed, lstm": (VECTOR, MIXED, DENSE | {"lstm": True}),
    "mixed, image": (SMALL_IMAGE, MIXED, SMALL),
    "image": (SMALL_IMAGE, POLICY, SMALL),
    "image, history of 1": (SMALL_IMAGE, POLICY, SMALL | {"history_len": 1}),
    "image, history of 16": (SMALL_IMAGE, POLICY, SMALL | {"history_len": 16}),
    "lstm": (VECTOR, POLICY, DENSE | {"lstm": True}),
    "lstm alone": (VECTOR, Gaussian(2), {"network": {"dense": [], "lstm_size": 3}, "lstm": True}),
    "lstm, separate": (VECTOR, POLICY, {"network": {"dense": [5, 4], "separate": True, "lstm_size": 6}, "lstm": True}),
    "lstm, image": (SMALL_IMAGE, POLICY, {"network": SMALL["network"] | {"lstm_size": 7}, "lstm": True}),
    "several choices": (VECTOR, MultiCategorical((2, 4)), DENSE),
    "bits, lstm": (VECTOR, Bernoulli(3), DENSE | {"lstm": True}),
    "numbers beside an image": (BESIDE, POLICY, SMALL | {"history_len": 2}),
    "numbers beside an image, separate": (
        *(BESIDE, MultiCategorical((2, 3))),
        {"network": SMALL["network"] | {"separate": True, "activation": "tanh"}},
    ),
    "lstm, numbers beside an image": (BESIDE, POLICY, {"network": {"dense": [], "lstm_size": 7}, "lstm": True}),
    "image without convolutions": (SMALL_IMAGE, POLICY, {"network": {"convolutions": [], "dense": [5]}}),
}


FAST = [(case, None) for case in ("vector", "separate", "gaussian", "image", "lstm", "lstm, image", "bits, lstm")]
CHECKS = ("relaax/nn", "relaax/algorithm_base", "algorithms/da3c")


@pytest.mark.parametrize(
    ("case", "clipping"),
    fast_and_slow(
        [*((case, None) for case in CASES), ("lstm", 0.01), ("image", 1000.0)],
        [*FAST, ("numbers beside an image", None), ("lstm", 0.01)],
        *CHECKS,
    ),
)
def test_host_gradient_equals_the_tensorflow_gradient(case: str, clipping: float | None) -> None:
    space, policy, keys = CASES[case]
    keys = keys | {"RMSProp": {"gradient_norm_clipping": clipping}}
    batch = batch_of(spec_of(space, policy, **keys), policy, 5, 3)
    host, tensorflow = (made(kind, space, policy, **keys) for kind in (HostEngine, TensorFlowEngine))
    close(host.gradient(batch), tensorflow.gradient(batch))


@pytest.mark.parametrize("case", ["vector", "lstm", "mixed", "several choices", "image"])
def test_engines_give_equal_gradients_with_action_masks(case: str) -> None:
    space, policy, keys = CASES[case]
    batch = masked(batch_of(spec_of(space, policy, **keys), policy, 5, 3), policy)
    host, tensorflow = (made(kind, space, policy, **keys) for kind in (HostEngine, TensorFlowEngine))
    found = host.gradient(batch)
    close(found, tensorflow.gradient(batch))
    assert np.abs(found[0] - host.gradient(replace(batch, valid=None))[0]).max() > 1e-3


@pytest.mark.parametrize("rows", [[], [0], [4], [1, 2], [0, 1, 2, 3, 4], [4, 0, 2]])
@pytest.mark.parametrize("case", ["vector", "image"])
def test_kept_rows_do_not_change_the_gradient(case: str, rows: list[int]) -> None:
    space, policy, keys = CASES[case]
    spec = spec_of(space, policy, **keys)
    model = made(HostEngine, space, policy, (5, 3), **keys)
    batch, another = (batch_of(spec, policy, 5, 3, seed) for seed in (6, 7))
    forwards = Counted(model.engine._network.forward)
    model.engine._network.forward = forwards
    for row in rows:
        model.act(batch.inputs[row], no_state(3), keep=row)
        model.act(another.inputs[row], no_state(3))  # as for the value of a final observation
    acted = forwards.examples
    found = model.gradient(batch)
    assert forwards.examples - acted == 3 * (5 - len(rows))
    expected = made(HostEngine, space, policy, (5, 3), **keys).gradient(batch)
    close(found, expected)
    close(model.gradient(another), made(HostEngine, space, policy, (5, 3), **keys).gradient(another))


def test_rows_kept_with_old_parameters_are_recomputed() -> None:
    model, spec = made(HostEngine, VECTOR, shape=(5, 3), **DENSE), spec_of(VECTOR, **DENSE)
    batch = batch_of(spec, POLICY, 5, 3)
    for row in range(5):
        if row == 2:
            model.set_parameters(parameters_of(spec, 8))
        model.act(batch.inputs[row], no_state(3), keep=row)
    reference = made(HostEngine, VECTOR, **DENSE)
    reference.set_parameters(parameters_of(spec, 8))
    close(model.gradient(batch), reference.gradient(batch))


def test_row_after_the_batch_does_not_evict_kept_rows() -> None:
    """If environments step before the gradient, the first row of the next rollout is already acted on."""
    model, spec = made(HostEngine, VECTOR, shape=(5, 3), **DENSE), spec_of(VECTOR, **DENSE)
    batch = batch_of(spec, POLICY, 5, 3)
    for row in range(5):
        model.act(batch.inputs[row], no_state(3), keep=row)
    model.act(inputs_of(spec, 3), no_state(3), keep=5)
    forwards = model.engine._network.forward = Counted(model.engine._network.forward)
    close(model.gradient(batch), made(HostEngine, VECTOR, **DENSE).gradient(batch))
    assert forwards.examples == 0


def test_batch_shapes_may_vary() -> None:
    model, spec = made(HostEngine, VECTOR, shape=(None, None), **DENSE), spec_of(VECTOR, **DENSE)
    reference = made(HostEngine, VECTOR, shape=(None, None), **DENSE)
    for steps, environments in [(3, 4), (1, 1), (700, 1), (3, 2), (90, 7)]:
        batch = batch_of(spec, POLICY, steps, environments)
        for row in range(0, min(steps, 80), 2):
            model.act(batch.inputs[row], no_state(environments), keep=row)
        close(model.gradient(batch), reference.gradient(batch))


@pytest.mark.parametrize("kept", [1, 4, 8])
def test_batch_larger_than_one_part_gives_the_same_gradient(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Some parts begin inside a row, and some rows exceed the memory for kept rows."""
    space, policy, keys = CASES["image"]
    spec = spec_of(space, policy, **keys)
    batch = batch_of(spec, policy, 5, 3)
    expected = made(HostEngine, space, policy, **keys).gradient(batch)
    monkeypatch.setattr(host, "EXAMPLES", 4)
    probe = made(HostEngine, space, policy, (5, 3), **keys)
    monkeypatch.setattr(host, "KEPT_BYTES", kept * probe.engine._network.example_bytes)
    model = made(HostEngine, space, policy, (5, 3), **keys)
    for row in range(5):
        model.act(batch.inputs[row], no_state(3), keep=row)
    close(model.gradient(batch), expected)


def test_returned_gradients_and_outputs_never_change() -> None:
    model, spec = made(HostEngine, VECTOR, shape=(5, 3), **DENSE), spec_of(VECTOR, **DENSE)
    given = []
    for seed in range(12):
        batch = batch_of(spec, POLICY, 5, 3, seed)
        outputs, _ = model.act(batch.inputs[0], no_state(3), keep=0)
        given += [(array, array.copy()) for array in (*outputs.values(), *model.gradient(batch))]
    for array, copy in given:
        np.testing.assert_array_equal(array, copy)


def test_nan_reaches_the_gradient_without_a_warning() -> None:
    model, spec = made(HostEngine, VECTOR, **DENSE), spec_of(VECTOR, **DENSE)
    batch = batch_of(spec, POLICY, 5, 3)
    batch.advantages[2, 1] = np.nan
    batch.mask[2, 1] = 1
    gradient, statistics = model.gradient(batch)
    assert np.isnan(gradient).any() and np.isnan(statistics[-1])


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("space", [VECTOR, SMALL_IMAGE], ids=["vector", "image"])
def test_training_on_a_cpu_does_not_call_tensorflow(monkeypatch: pytest.MonkeyPatch, space: Box, lstm: bool) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("TensorFlow was called")

    for name in ("function", "constant", "convert_to_tensor", "split", "reshape", "TensorSpec"):
        monkeypatch.setattr(tf, name, refuse)
    keys = (SMALL if space is SMALL_IMAGE else DENSE) | {"lstm": lstm}
    agent, parameters_client = make_agent(
        DA3C, DA3C.configure({"path": "da3c"} | keys), space, Discrete(3), environments=2
    )
    envs = RandomEnvironments(space, Discrete(3), 2)
    actions = agent.reset(envs.reset())
    for _ in range(12):
        actions = agent.step(envs.step(actions))
        agent.learn()
    assert len(parameters_client.pushes) == 2


def test_tensorflow_is_used_only_for_images_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu in (False, True):
        monkeypatch.setattr(engines, "computes_on_gpu", lambda gpu=gpu: gpu)
        for space, lstm in ((VECTOR, False), (VECTOR, True), (IMAGE, False), (IMAGE, True)):
            on_gpu = gpu and space is IMAGE
            spec = spec_of(space, lstm=lstm)
            learner, actor = engines.make_engine(spec, space.dtype, (5, 1)), engines.make_actor(spec, space.dtype)
            assert type(learner) is (TensorFlowEngine if on_gpu else HostEngine)
            assert type(actor) is (TensorFlowEngine if on_gpu else NumpyActor)


@pytest.mark.parametrize(
    "case", ["spherical", "image", "bits, lstm", "lstm, separate", "lstm, numbers beside an image"]
)
def test_all_engines_return_the_same_outputs(case: str) -> None:
    space, policy, keys = CASES[case]
    spec = spec_of(space, policy, **keys)
    state = np.random.default_rng(5).normal(size=(50, spec.state_size)).astype(np.float32)
    inputs = inputs_of(spec, 50)
    host_engine, tensorflow = (made(kind, space, policy, **keys) for kind in (HostEngine, TensorFlowEngine))
    actor = NumpyActor(spec)
    actor.set_parameters(parameters_of(spec))
    expected, expected_after = host_engine.act(inputs, state)
    for act in (actor.act, tensorflow.act):
        outputs, after = act(inputs, state)
        np.testing.assert_allclose(after, expected_after, atol=1e-5)
        for head in spec.heads:
            np.testing.assert_allclose(outputs[head], expected[head], rtol=1e-4, atol=1e-5)
        if isinstance(policy, Categorical):
            np.testing.assert_array_equal(policy.mode(outputs), policy.mode(expected))


@pytest.mark.parametrize("case", ["lstm", "lstm, separate", "lstm, numbers beside an image"])
def test_lstm_rows_are_reused_only_if_all_are_kept(case: str) -> None:
    """The gradient reuses the LSTM's outputs of acting if all rows are kept, otherwise none."""
    space, policy, keys = CASES[case]
    spec = spec_of(space, policy, **keys)
    batch = batch_of(spec, policy, 5, 3)
    expected = made(TensorFlowEngine, space, policy, **keys).gradient(batch)
    for rows in (5, 3):
        model = made(HostEngine, space, policy, (5, 3), **keys)
        state = batch.state
        for row in range(rows):
            state = np.where(batch.restart[row][:, None], np.float32(0), state)
            _, state = model.act(batch.inputs[row], state, keep=row)
        forwards = model.engine._network.forward = Counted(model.engine._network.forward)
        close(model.gradient(batch), expected)
        assert forwards.examples == (0 if rows == 5 else 15)


def test_batch_shapes_do_not_retrace_tensorflow() -> None:
    space, policy, keys = CASES["lstm, image"]
    model, spec = made(TensorFlowEngine, space, policy, **keys), spec_of(space, policy, **keys)
    for steps, environments in [(3, 2), (1, 1), (7, 2), (2, 5)]:
        batch = batch_of(spec, policy, steps, environments)
        model.act(batch.inputs[0], batch.state)
        model.gradient(batch)
    assert model.engine._forward.experimental_get_tracing_count() == 1


def test_tensorflow_acts_by_the_newest_parameters() -> None:
    model, spec = made(TensorFlowEngine), spec_of()
    inputs = inputs_of(spec, 2)
    before, _ = model.act(inputs, no_state(2))
    model.set_parameters(np.zeros(spec.layout().size, np.float32))
    after, _ = model.act(inputs, no_state(2))
    assert before["policy"].any()
    assert not after["policy"].any()


class Counted:
    """A wrapper that counts the calls and the examples of a function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = self.examples = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        self.examples += len(arguments[0])
        return self.function(*arguments)
