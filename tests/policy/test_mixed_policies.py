"""Policies of mixed actions: the agent, the policy file and the ONNX model act alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relaax.policy
from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, StepResult, Tuple
from relaax.policy.onnx_export import onnx_of
from relaax.rlx.action_masks import choices_of
from support.onnx_session import ENVIRONMENTS, ModelSession
from support.policy_files import bundled, write

STEPS = 25
VECTOR, CAMERA = Box(shape=(3,)), Box(0, 255, (16, 20), np.uint8)
SHOOTER = Dict({"move": Box(-1, 1, (2,)), "aim": Box([-3, 0], [3, np.inf], dtype=np.float64), "shoot": Discrete(2)})
DEEP = Tuple(
    [
        MultiBinary([2, 2]),
        Dict({"arm": Tuple([Discrete(3, start=5), Box(-np.inf, 3, (1, 2))]), "keys": MultiDiscrete([2, 4])}),
        Box(5, 10, ()),
        Discrete(4),
    ]
)
LSTM = {"lstm": True, "network": {"lstm_size": 8, "dense": [16]}}


def masked(space: Space, actions: Space) -> Dict:
    return Dict({"action_mask": MultiBinary(sum(choices_of(actions))), "see": space})


def observed(space: Space, actions: Space, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Return random observations. A mask excludes one action of each choice, the most probable one included."""
    drawn = []
    for path, element in zip(space.paths(), space.elements(), strict=True):
        shape = (ENVIRONMENTS, *element.shape)
        if "action_mask" in path:
            excluded = [np.arange(count) != rng.integers(0, count, (ENVIRONMENTS, 1)) for count in choices_of(actions)]
            drawn.append(np.concatenate(excluded, axis=1).astype(np.int8))
        elif element.dtype == np.uint8:
            drawn.append(rng.integers(0, 256, shape, np.uint8))
        else:
            drawn.append(rng.normal(2, 9, shape).astype(element.dtype))
    return drawn


@pytest.mark.parametrize("with_mask", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize(
    ("name", "observation", "action", "keys"),
    [
        ("da3c", VECTOR, SHOOTER, {"normalize_observations": True}),
        ("da3c", VECTOR, DEEP, {"spherical": True, "entropy_weights": {"1/arm": 0.5}}),
        ("da3c", CAMERA, DEEP, {"history_len": 2}),
        ("da3c", Dict({"camera": CAMERA, "speed": VECTOR}), SHOOTER, LSTM),
        ("da3c_cont", VECTOR, DEEP, {"network": {"lstm_size": 8, "dense": [16], "separate": True}}),
        ("ppo", VECTOR, SHOOTER, {"normalize_observations": True}),
    ],
    ids=["numbers", "deep", "image", "image-lstm", "two-lstms", "ppo"],
)
def test_agent_policy_file_and_onnx_model_act_alike(
    tmp_path: Path, name: str, observation: Space, action: Space, keys: dict[str, Any], with_mask: bool
) -> None:
    space = masked(observation, action) if with_mask else observation
    path, agent, _ = write(tmp_path, bundled(name), space, action, **keys)
    policy = relaax.policy.load(path, greedy=True)
    session = ModelSession(onnx_of(policy), mask=0 if with_mask else None)
    count = len(list(action.elements()))
    assert [name for name in session.outputs if name.startswith("action")] == [f"action.{i}" for i in range(count)]
    assert set(policy.graph().heads) <= set(session.outputs)
    rng = np.random.default_rng(3)
    taken: list[list[npt.NDArray[Any]]] = []
    for step in range(STEPS):
        seen = observed(space, action, rng)
        first = (rng.random(ENVIRONMENTS) < 0.2) | (step == 0)
        if step == 0:
            acted = agent.reset(seen)
        else:
            rewards, never = np.zeros(ENVIRONMENTS), np.zeros(ENVIRONMENTS, np.bool_)
            acted = agent.step(StepResult(rewards, seen, first, never, never))
        from_file = action.flatten(policy.act(space.unflatten(seen), first))
        found = session.step(seen, first)
        for index, element in enumerate(action.elements()):
            leaf = found[f"action.{index}"]
            for each in (acted[index], from_file[index], leaf):
                assert (each.dtype, each.shape) == (element.dtype, (ENVIRONMENTS, *element.shape))
                np.testing.assert_allclose(each, leaf, rtol=0, atol=1e-5 * max(1, np.abs(leaf).max()))
        taken.append(acted)
        if with_mask:
            check_mask(seen[0], acted, action)
    for leaves in zip(*taken, strict=True):
        assert len(np.unique(np.stack(leaves))) > 1, "the test needs more than one action of each part"


def check_mask(mask: npt.NDArray[Any], leaves: list[npt.NDArray[Any]], action: Space) -> None:
    start = 0
    for leaf, element in zip(leaves, action.elements(), strict=True):
        offset = element.start if isinstance(element, Discrete) else 0
        for k, count in enumerate(choices_of(element)):
            chosen = leaf.reshape(ENVIRONMENTS, -1)[:, k] - offset
            assert mask[np.arange(ENVIRONMENTS), start + chosen].all()
            start += count
