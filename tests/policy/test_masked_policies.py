"""Policies of choices with action masks: the policy file and the ONNX model act alike, and only by valid actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relaax.policy
from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from relaax.algorithm_base.acting.masks import mask_part, without_mask
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.nn.distributions import MASKED
from relaax.nn.numpy_actor import NumpyActor
from relaax.policy import PolicyError
from relaax.policy.onnx_export import onnx_of
from relaax.rlx.action_masks import choices_of
from support.onnx_session import ENVIRONMENTS as N
from support.onnx_session import ModelSession
from support.policy_files import bundled, write

VECTOR, IMAGE = Box(shape=(3,)), Box(0, 255, (36, 36), np.uint8)
SEVERAL = MultiDiscrete([3, 2, 4])
LSTM = {"lstm": True, "network": {"lstm_size": 8, "dense": [16]}}
STEPS = 40


def masked(seen: Space, mask: Space, key: str = "action_mask") -> Dict:
    return Dict({key: mask, "seen": seen})


def drawn_leaves(space: Space, action: Space, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Return random observations, with masks of at least one valid action for each choice."""
    leaves = []
    for element in space.elements():
        shape = (N, *element.shape)
        if isinstance(element, MultiDiscrete):
            leaves.append(rng.integers(0, element.nvec, shape))
        elif element.dtype.kind == "f":
            leaves.append(rng.normal(2, 9, shape).astype(element.dtype))
        else:
            leaves.append(rng.integers(0, 256, shape).astype(element.dtype))
    parts = [rng.random((N, count)) < 0.3 for count in choices_of(action)]
    for part in parts:
        part[np.arange(N), rng.integers(0, part.shape[1], N)] = True
    mask = leaves[0]
    leaves[0] = np.concatenate(parts, axis=1).reshape(mask.shape).astype(mask.dtype)
    return leaves


@pytest.mark.parametrize(
    ("name", "space", "action", "keys"),
    [
        ("da3c", masked(VECTOR, MultiBinary(7)), Discrete(7, -3), {"normalize_observations": True}),
        ("da3c", masked(VECTOR, Box(0, 1, (3, 3), np.float32)), SEVERAL, LSTM),
        ("da3c", masked(SEVERAL, MultiDiscrete([2] * 9), "legal"), SEVERAL, {"action_mask": "legal"}),
        ("da3c", masked(IMAGE, MultiBinary(5)), Discrete(5), {}),
        ("da3c", masked(Dict({"camera": IMAGE, "speed": VECTOR}), MultiBinary(5)), MultiDiscrete([5]), {}),
        ("async_q", masked(SEVERAL, MultiBinary(6)), Discrete(6), {"dueling": True}),
        ("async_sarsa", masked(VECTOR, Box(0, 1, (6,), np.int64)), Discrete(6, 2), {}),
        ("n_step_q", masked(VECTOR, MultiBinary(6)), Discrete(6), {"dueling": True, **LSTM}),
        ("apex", masked(IMAGE, MultiBinary(6)), Discrete(6), {"network": {"dense": [16]}}),
    ],
    ids=["choice", "choices", "one-hot", "image", "beside", "async_q", "async_sarsa", "n_step_q", "apex"],
)
def test_policy_file_and_onnx_model_take_the_same_valid_actions(
    tmp_path: Path, name: str, space: Dict, action: Space, keys: dict[str, Any]
) -> None:
    path, *_ = write(tmp_path, bundled(name), space, action, **keys)
    policy = relaax.policy.load(path, greedy=True)
    session = ModelSession(onnx_of(policy), mask=mask_part(keys.get("action_mask", "action_mask"), space))
    assert "action_mask" in session.inputs
    rng, start = np.random.default_rng(3), getattr(action, "start", 0)
    taken = []
    for step in range(STEPS):
        seen = drawn_leaves(space, action, rng)
        first = (rng.random(N) < 0.2) | (step == 0)
        actions = np.asarray(policy.act(space.unflatten(seen), first))
        np.testing.assert_array_equal(session.step(seen, first)["action"], actions)
        valid = np.split(seen[0].reshape(N, -1) != 0, np.cumsum(choices_of(action))[:-1], axis=1)
        for mask, chosen in zip(valid, (actions - start).reshape(N, -1).T, strict=True):
            assert mask[np.arange(N), chosen].all()
        taken.append(actions)
    assert len(np.unique(np.concatenate(taken), axis=0)) > 3, "the test needs several actions"


def test_onnx_model_replaces_the_outputs_of_invalid_actions(tmp_path: Path) -> None:
    space = masked(SEVERAL, MultiBinary(9))
    path, *_ = write(tmp_path, bundled("da3c"), space, SEVERAL)
    policy = relaax.policy.load(path)
    graph, seen = policy.graph(), drawn_leaves(space, SEVERAL, np.random.default_rng(1))
    actor = NumpyActor(graph.network)
    actor.set_parameters(graph.parameters)
    inputs = ObservationEncoder(without_mask("action_mask", space), N, 1).reset(seen[1:])
    outputs, _ = actor.act(inputs, np.zeros((N, 0), np.float32))
    found = ModelSession(onnx_of(policy), mask=0).step(seen, np.ones(N, np.bool_))["policy"]
    valid = seen[0] != 0
    np.testing.assert_allclose(found[valid], outputs["policy"][valid], rtol=0, atol=1e-5)
    assert (found[~valid] == MASKED).all()


def test_policy_refuses_a_mask_of_nothing_and_continues(tmp_path: Path) -> None:
    space = masked(VECTOR, MultiBinary(4))
    path, *_ = write(tmp_path, bundled("da3c"), space, Discrete(4))
    policy, at = relaax.policy.load(path), np.zeros((2, 3), np.float32)
    mask = np.array([[0, 1, 0, 0], [0, 0, 1, 0]], np.int8)
    assert policy.act({"action_mask": mask, "seen": at}).tolist() == [1, 2]
    with pytest.raises(PolicyError, match="action_mask of environment 1 allows no action at step 2 over all episodes"):
        policy.act({"action_mask": mask * [[1], [0]], "seen": at})
    assert policy.act({"action_mask": mask, "seen": at}).tolist() == [1, 2]
