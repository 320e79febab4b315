"""A policy from a file acts like the algorithm's agent in exploit mode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relaax.policy
from relaax.algorithm_base import AgentBase, Box, Dict, Discrete, Space, StepResult, load_algorithm
from relaax.cli.new.command import ALGORITHM, fill_template
from relaax.policy import Policy, PolicyError
from support.policy_files import bundled, write

VECTOR, IMAGE = Box(shape=(3,)), Box(0, 255, (20, 20), np.uint8)
STEPS = 12


def observations(space: Space, environments: int = 3) -> list[list[npt.NDArray[Any]]]:
    """Leaves of the observations at each step."""
    rng = np.random.default_rng(1)
    return [
        [
            rng.integers(0, 4, (environments, *element.shape)).astype(element.dtype) * (60 if space is IMAGE else 1)
            for element in space.elements()
        ]
        for _ in range(STEPS)
    ]


def firsts() -> npt.NDArray[np.bool_]:
    mask = np.random.default_rng(2).random((STEPS, 3)) < 0.25
    mask[0] = True
    return mask


def actions_of_agent(agent: AgentBase, seen: list[list[npt.NDArray[Any]]]) -> list[list[npt.NDArray[Any]]]:
    """Return the agent's actions. If an episode starts, the previous episode of its environment has terminated."""
    none = np.zeros(3, np.bool_)
    actions = [agent.reset(seen[0])]
    for leaves, first in zip(seen[1:], firsts()[1:], strict=True):
        actions.append(agent.step(StepResult(np.ones(3), leaves, first, none, none, leaves if first.any() else None)))
    return actions


@pytest.mark.parametrize(
    ("name", "observation", "action", "keys"),
    [
        ("da3c", VECTOR, Discrete(3, 2), {}),
        ("da3c", VECTOR, Discrete(3), {"lstm": True, "normalize_observations": True, "network": {"lstm_size": 8}}),
        ("da3c", IMAGE, Discrete(4), {"history_len": 3, "network": {"convolutions": [], "dense": [16]}}),
        ("da3c", Dict({"a": Discrete(4), "b": VECTOR}), Discrete(3), {"network": {"dense": [8]}}),
        ("da3c_cont", VECTOR, Box(-2, 2, (2,)), {"normalize_rewards": "scale", "network": {"lstm_size": 8}}),
        ("da3c_cont", VECTOR, Box(-1e6, 3.4e38, (2,)), {"network": {"lstm_size": 8}}),
        ("ppo", VECTOR, Discrete(3), {"normalize_observations": True}),
        ("sac", VECTOR, Box(-2, 3, (2,)), {"normalize_observations": True}),
        ("apex_dpg", VECTOR, Box(-2, 3, (2,)), {"network": {"dense": [16]}}),
    ],
    ids=["da3c", "lstm", "frames", "dict", "da3c_cont", "unbounded", "ppo", "sac", "apex_dpg"],
)
def test_policy_acts_like_the_agent(
    tmp_path: Path, name: str, observation: Space, action: Space, keys: Mapping[str, Any]
) -> None:
    path, agent, _ = write(tmp_path, bundled(name), observation, action, **keys)
    seen = observations(observation)
    expected = actions_of_agent(agent, seen)
    policy = relaax.policy.load(path)
    for leaves, first, wanted in zip(seen, firsts(), expected, strict=True):
        actions = action.flatten(policy.act(observation.unflatten(leaves), first))
        for mine, its in zip(actions, wanted, strict=True):
            assert mine.dtype == its.dtype
            np.testing.assert_array_equal(mine, its)
    # A single environment, with one observation at a time.
    policy.reset()
    for number, (leaves, first) in enumerate(zip(seen, firsts()[:, 1], strict=True)):
        one = policy.act(observation.unflatten([leaf[1] for leaf in leaves]), bool(first))
        assert isinstance(one, int if isinstance(action, Discrete) else np.ndarray)
        np.testing.assert_allclose(action.flatten(one)[0], expected[number][0][1], rtol=1e-6)


def test_policy_describes_its_origin(tmp_path: Path) -> None:
    path, _, bridge = write(tmp_path, bundled("da3c"), VECTOR, Discrete(3), entropy_beta=0.5)
    policy = relaax.policy.load(str(path))
    assert (policy.algorithm, policy.global_step, policy.configuration["entropy_beta"]) == ("da3c", 120, 0.5)
    assert (str(policy.observation_space), policy.action_space) == ("Box(float32, [3])", Discrete(3))
    assert repr(policy) == "<Policy of da3c at global step 120: Box(float32, [3]) to Discrete(3)>"
    assert policy.description.configuration == {"relaax-rlx-server": {"token": "(hidden)"}}
    assert b"secret" not in path.read_bytes()
    import safetensors

    with safetensors.safe_open(path, "np") as file:  # other readers of the format can read the file
        np.testing.assert_array_equal(file.get_tensor("parameters"), bridge.parameters)


def test_sampled_actions_depend_on_the_seed(tmp_path: Path) -> None:
    path, _, _ = write(tmp_path, bundled("da3c_cont"), VECTOR, Box(-2, 2, (2,)))

    def drawn(seed: int) -> list[list[float]]:
        policy = relaax.policy.load(path, greedy=False, seed=seed)
        return [policy.act(np.ones(3, np.float32)).tolist() for _ in range(5)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_greedy_defaults_to_the_run_configuration(tmp_path: Path) -> None:
    path, _, _ = write(tmp_path, bundled("da3c_cont"), VECTOR, Box(-2, 2, (2,)), lstm=False, greedy_exploit=False)
    for greedy, varies in ((None, True), (True, False)):
        policy = relaax.policy.load(path, greedy=greedy)
        first, second = (policy.act(np.ones(3, np.float32)).tolist() for _ in range(2))
        assert (first != second) is varies


def test_keys_of_exploit_mode_can_change(tmp_path: Path) -> None:
    path, _, _ = write(tmp_path, bundled("apex"), VECTOR, Discrete(3), network={"dense": [8]})

    def drawn(epsilon: float) -> set[int]:
        policy = relaax.policy.load(path, greedy=False, keys={"exploit_epsilon": epsilon})
        return {policy.act(np.ones(3, np.float32)) for _ in range(50)}

    assert len(drawn(0.0)) == 1
    assert drawn(1.0) == {0, 1, 2}
    for keys, message in (
        (
            {"network": {"dense": [9]}},
            r"algorithm.network.dense is \[8\] in the checkpoint, \[9\] in the configuration",
        ),
        ({"exploit_epsilon": 2}, "exploit_epsilon"),
        ({"exploit_epsilom": 0}, "did you mean 'exploit_epsilon'"),
    ):
        with pytest.raises(PolicyError, match=message):
            relaax.policy.load(path, keys=keys)


def test_own_algorithm_is_loaded_by_its_path(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(fill_template(ALGORITHM, ".py", "mine"), encoding="utf-8")
    path, agent, _ = write(tmp_path, load_algorithm(str(source), tmp_path), VECTOR, Discrete(3))
    seen = observations(VECTOR)
    policy = relaax.policy.load(path, algorithm=source)
    for leaves, first, wanted in zip(seen, firsts(), actions_of_agent(agent, seen), strict=True):
        assert policy.act(leaves[0], first).tolist() == wanted[0].tolist()
    with pytest.raises(PolicyError, match=r"the algorithm 'mine', which does not come with RELAAX: give its path"):
        relaax.policy.load(path)
    with pytest.raises(PolicyError, match="uses the algorithm 'mine', not 'da3c'"):
        relaax.policy.load(path, algorithm="da3c")
    with pytest.raises(PolicyError, match="has no key greedy_exploit"):
        relaax.policy.load(path, algorithm=source, greedy=False)


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return relaax.policy.load(write(tmp_path, bundled("da3c"), VECTOR, Discrete(3))[0])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (np.zeros(4), r"an observation in Box\(float32, \[3\]\) is needed"),
        (np.zeros((2, 2, 3)), "or N of them with an additional axis"),
        (np.zeros((0, 3)), "or N of them with an additional axis"),
        (np.array([0.0, np.nan, 0.0]), "observation holds NaN, not a value of"),
        ("text", "an observation in"),
    ],
)
def test_invalid_observation_is_refused(policy: Policy, wrong: Any, sentence: str) -> None:
    with pytest.raises(PolicyError, match=sentence):
        policy.act(wrong)
    assert policy.act(np.zeros(3)) in (0, 1, 2)


def test_number_of_environments_changes_only_after_reset(policy: Policy) -> None:
    assert policy.act(np.zeros((2, 3))).shape == (2,)
    with pytest.raises(PolicyError, match=r"4 observations after 2: call reset\(\)"):
        policy.act(np.zeros((4, 3)))
    with pytest.raises(PolicyError, match=r"first has shape \[3\]; a bool for each of 2 observations is needed"):
        policy.act(np.zeros((2, 3)), [True] * 3)
    with pytest.raises(PolicyError, match="first is not an array of bools, and a bool for each of 2 observations"):
        policy.act(np.zeros((2, 3)), [[True], [True, False]])
    policy.reset()
    assert policy.act(np.zeros((4, 3))).shape == (4,)


def test_invalid_policy_file_is_refused(tmp_path: Path) -> None:
    import safetensors.numpy

    path, _, _ = write(tmp_path, bundled("da3c"), VECTOR, Discrete(3))
    data = path.read_bytes()
    other = tmp_path / "other"
    for wrong, sentence in [
        (b"", "not a RELAAX policy"),
        (b"text of any kind, long enough", "not a RELAAX policy"),
        (data[:-4], "not a RELAAX policy"),
        (data[:-1] + bytes([data[-1] ^ 1]), "SHA-256 differs"),
        (
            data.replace(b"relaax-policy-1", b"relaax-policy-9"),
            "its format is 'relaax-policy-9', not 'relaax-policy-1'",
        ),
        (safetensors.numpy.save({"x": np.zeros(3)}), "its format is None"),
        (data.replace(b'\\"da3c\\"', b'\\"da4c\\"'), "which does not come with RELAAX"),
        (data.replace(b'\\"seed\\"', b'\\"sead\\"'), "has no valid description"),
        (data.replace(b'\\"episode_len\\"', b'\\"episode_lon\\"'), "differs from the version that trained this policy"),
        (data.replace(b'\\"dense\\": null', b'\\"dense\\": [12]'), "the parameters do not fit the algorithm"),
    ]:
        assert wrong != data
        other.write_bytes(wrong)
        with pytest.raises(PolicyError, match=sentence):
            relaax.policy.load(other)
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        relaax.policy.load(tmp_path / "none")
