"""Acting: in numpy on a few images, in TensorFlow on many or on a GPU, with the same outcome."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, load_algorithm
from relaax.tf.networks import orthogonal_parameters
from relaax.tf.policies import Categorical

DA3C = load_algorithm("da3c", Path())
PACKAGE = DA3C.Agent.__module__.rpartition(".")[0]
MODEL, NETWORK = (sys.modules[f"{PACKAGE}.{name}"] for name in ("model", "network"))
POLICY = Categorical(3)
IMAGE = Box(0, 255, shape=(84, 84), dtype=np.uint8)


def model_of(space: Box = IMAGE, **keys: Any) -> tuple[Any, Any]:
    """A model with random parameters, and its network."""
    config = DA3C.configure({"path": "da3c"} | keys)
    spec = NETWORK.actor_critic(config, space, POLICY)
    model = MODEL.Model(spec, POLICY, config, space.dtype, (5, None))
    model.set_parameters(orthogonal_parameters(spec, 3, {}))
    return model, spec


def images(count: int) -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (count, 84, 84, 4), dtype=np.uint8)


class Counted:
    """Counts the calls of a function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def counted(model: Any) -> Counted:
    """How often the model acts in TensorFlow."""
    model._act = Counted(model._act)
    return model._act  # type: ignore[no-any-return]


@pytest.mark.parametrize("lstm", [False, True])
def test_one_image_more_than_the_bound_makes_no_difference(lstm: bool) -> None:
    model, spec = model_of(lstm=lstm)
    calls = counted(model)
    bound = MODEL.IMAGES_FOR_NUMPY
    inputs = images(bound + 1)
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
    model, spec = model_of()
    inputs, state = images(MODEL.IMAGES_FOR_NUMPY + 1), np.zeros((MODEL.IMAGES_FOR_NUMPY + 1, 0), np.float32)
    before, _ = model.act(inputs, state)
    model.set_parameters(np.zeros(spec.layout().size, np.float32))
    after, _ = model.act(inputs, state)
    assert before["policy"].any()
    assert not after["policy"].any()


def test_on_a_gpu_tensorflow_acts_on_every_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODEL, "computes_on_gpu", lambda: True)
    model, spec = model_of()
    calls = counted(model)
    elsewhere = model.act(images(1), np.zeros((1, 0), np.float32))[0]
    assert calls.calls == 1
    monkeypatch.undo()
    here = model_of()[0].act(images(1), np.zeros((1, 0), np.float32))[0]
    for head in spec.heads:
        np.testing.assert_allclose(here[head], elsewhere[head], atol=1e-5)


def test_without_convolutions_numpy_acts_on_any_number() -> None:
    model, _ = model_of(Box(-1, 1, shape=(4,)))
    calls = counted(model)
    model.act(np.zeros((1000, 4), np.float32), np.zeros((1000, 0), np.float32))
    assert calls.calls == 0
