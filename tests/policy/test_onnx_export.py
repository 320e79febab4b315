"""An exported ONNX model acts like the policy, including the encoding of observations."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import relaax.policy
from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, load_algorithm
from relaax.nn.numpy_actor import NumpyActor
from relaax.policy import PolicyError
from relaax.policy.onnx_export import onnx_of
from support.onnx_session import ENVIRONMENTS as N
from support.onnx_session import ModelSession
from support.policy_files import bundled, write

STEPS = 25
VECTOR, IMAGE, COLORED = Box(shape=(3,)), Box(0, 255, (36, 36), np.uint8), Box(0, 255, (36, 36, 3), np.uint8)
PIXELS = Box(False, True, (10, 10, 4), np.bool_)
PARTS = Dict({"a": Discrete(4, 2), "b": Box(shape=(2,), dtype=np.float64), "c": Box(0, 255, (16, 20), np.uint8)})
BESIDE = Dict({"at": Discrete(3, 1), "camera": COLORED, "speed": Box(shape=(2,), dtype=np.float64)})
LSTM = {"lstm": True, "network": {"lstm_size": 8, "dense": [16]}}


def leaves(space: Space, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    drawn = []
    for element in space.elements():
        shape = (N, *element.shape)
        if isinstance(element, Discrete):
            drawn.append(rng.integers(element.start, element.start + element.n, shape))
        elif element.dtype.kind == "f":
            drawn.append(rng.normal(2, 9, shape).astype(element.dtype))
        else:
            drawn.append(rng.integers(0, 2 if element.dtype == np.bool_ else 256, shape).astype(element.dtype))
    return drawn


@pytest.mark.parametrize(
    ("name", "observation", "action", "keys"),
    [
        ("da3c", VECTOR, Discrete(3, 2), {"normalize_observations": True}),
        ("da3c", VECTOR, Discrete(3), LSTM),
        ("da3c", VECTOR, Discrete(3), {"lstm": True, "network": {"lstm_size": 8, "separate": True}}),
        ("da3c", IMAGE, Discrete(4), {}),
        ("da3c", IMAGE, Discrete(4), LSTM),
        ("da3c", COLORED, Discrete(4), {"history_len": 2, "network": {"activation": "tanh"}}),
        ("da3c", PIXELS, Discrete(6), {}),
        (
            "da3c",
            PARTS,
            Discrete(3),
            {"normalize_observations": True, "network": {"dense": [8], "flatten_images": True}},
        ),
        ("da3c_cont", VECTOR, Box(-2, 2, (2,)), {"normalize_observations": True, "lstm": False}),
        ("da3c_cont", VECTOR, Box(-1e6, 3.4e38, (2,)), {"lstm": False}),
        ("da3c_cont", VECTOR, Box(np.array([-1, -np.inf]), np.array([3, 0.1]), (2,)), {"lstm": False}),
        ("da3c_cont", VECTOR, Tuple([Box(-1, 1, (2, 2)), Box(0, 5, (1,), np.float64)]), LSTM),
        ("ppo", VECTOR, Box(-2, 2, (2,)), {"normalize_observations": True, **LSTM}),
        ("da3c", COLORED, Discrete(4), {"history_len": 2, "subtract_mean_image": True}),
        ("da3c", BESIDE, MultiDiscrete([2, 3]), {"normalize_observations": True}),
        ("da3c", Tuple([IMAGE]), Discrete(9), {"history_len": 1, "network": {"activation": "tanh"}}),
        ("n_step_q", BESIDE, Discrete(9), {"dueling": True, "subtract_mean_image": True, **LSTM}),
        ("da3c", VECTOR, MultiBinary([2, 2]), {}),
        ("async_q", PIXELS, Discrete(4, -1), {"dueling": True, "network": {"dense": [16]}}),
        ("async_sarsa", VECTOR, Discrete(3), {"normalize_observations": True}),
        ("n_step_q", VECTOR, Discrete(3), {"dueling": True, **LSTM}),
        ("sac", VECTOR, Tuple([Box(-1, 3, (2, 2)), Box(0, 5, (1,), np.float64)]), {"normalize_observations": True}),
        ("sac", BESIDE, Box(-1, 1, (2,)), {"network": {"dense": [8], "activation": "tanh"}}),
        ("apex_dpg", IMAGE, Box(-1, 1, (2,)), {"network": {"dense": [8]}}),
    ],
    ids=[
        *("vector", "lstm", "two-lstms", "frames", "frames-lstm", "colors", "bools"),
        *(
            "parts",
            "real",
            "unbounded",
            "half",
            "tuple",
            "ppo",
            "mean-image",
            "choices-beside",
            "one-part",
            "n_step_q-beside",
            "bits",
        ),
        *("async_q", "async_sarsa", "n_step_q", "sac", "sac-beside", "apex_dpg"),
    ],
)
def test_onnx_model_acts_like_the_policy(
    tmp_path: Path, name: str, observation: Space, action: Space, keys: dict[str, Any]
) -> None:
    path, *_ = write(tmp_path, bundled(name), observation, action, **keys)
    policy = relaax.policy.load(path, greedy=True)
    session = ModelSession(onnx_of(policy))
    rng = np.random.default_rng(3)
    taken = []
    for step in range(STEPS):
        seen = leaves(observation, rng)
        first = (rng.random(N) < 0.2) | (step == 0)
        wanted = action.flatten(policy.act(observation.unflatten(seen), first))
        found = session.step(seen, first)
        actions = [found[output] for output in session.outputs if output.startswith("action")]
        for ours, theirs in zip(wanted, actions, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
        taken.append(wanted[0])
    assert len(np.unique(np.stack(taken))) > 1, "the test needs more than one action"


@pytest.mark.parametrize(
    ("keys", "outputs"),
    [
        ({}, ["advantage"]),
        ({"both": True, "network": {"activation": "tanh", "dense": [9, 16]}}, ["advantage", "value"]),
    ],
)
def test_onnx_model_of_dueling_network_acts_like_the_policy(
    tmp_path: Path, keys: dict[str, Any], outputs: list[str]
) -> None:
    source = str(Path(__file__).parent.parent / "support" / "dueling_algorithm.py")
    action = Discrete(4, 2)
    path, *_ = write(tmp_path, load_algorithm(source, tmp_path), IMAGE, action, **keys)
    policy = relaax.policy.load(path, algorithm=source)
    graph, model = policy.graph(), onnx_of(policy)
    assert graph.network.streams
    actor = NumpyActor(graph.network)
    actor.set_parameters(graph.parameters)
    session = ModelSession(model)
    assert sorted(session.outputs) == sorted([*outputs, "action", "next_frames"])
    rng = np.random.default_rng(3)
    taken = []
    for step in range(STEPS):
        seen = leaves(IMAGE, rng)
        first = (rng.random(N) < 0.2) | (step == 0)
        wanted = policy.act(IMAGE.unflatten(seen), first)
        found = session.step(seen, first)
        expected, _ = actor.act(found["next_frames"], np.zeros((N, 0), np.float32))
        for head in outputs:
            largest = np.abs(expected[head]).max()
            np.testing.assert_allclose(found[head], expected[head], rtol=1e-4, atol=1e-5 * largest)
        np.testing.assert_array_equal(found["action"], wanted)
        taken.append(wanted)
    assert len(np.unique(np.stack(taken))) > 1, "the test needs more than one action"
    if "value" not in outputs:  # streams that are not exported are not in the file
        dense, bias = (math.prod(graph.network.layout().shapes[f"dense0/{part}"]) for part in ("kernel", "bias"))
        assert len(model) < 4 * (len(graph.parameters) - dense / 2 - bias / 2) + 10_000


def test_onnx_model_has_documented_inputs_and_outputs(tmp_path: Path) -> None:
    path, *_ = write(tmp_path, bundled("da3c"), IMAGE, Discrete(4), **LSTM, history_len=3)
    model = onnx_of(relaax.policy.load(path))
    session = ModelSession(model)
    assert list(session.inputs) == ["observation", "frames", "first", "memory"]
    assert session.inputs["frames"].shape == ["N", 36, 36, 3]
    assert session.inputs["memory"].shape == ["N", 16]
    assert sorted(session.outputs) == ["action", "next_frames", "next_memory", "policy"]
    (described,) = (entry.value for entry in onnx.load_from_string(model).metadata_props if entry.key == "relaax")
    assert json.loads(described) == {
        "algorithm": "da3c",
        "checkpoint": "00000004-120",
        "global_step": 120,
        "mean_return": None,
    }


def test_error_names_algorithm_without_policy_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = bundled("da3c")
    path, *_ = write(tmp_path, algorithm, VECTOR, Discrete(2))
    policy = relaax.policy.load(path)
    monkeypatch.setattr(type(policy._agent), "policy_graph", lambda self: None)
    with pytest.raises(PolicyError, match=r"da3c does not describe its network: its Agent needs policy_graph\(\)"):
        onnx_of(policy)
