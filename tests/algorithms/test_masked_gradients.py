"""Gradients and targets with action masks, computed by hand over the valid actions of each step and environment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, Dict, Discrete, InvalidObservation, StepResult, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, make_agent

N, T, GAMMA, BETA = 2, 4, 0.5, 0.1
BIASES = np.array([0.5, -1.0, 2.0, 0.3, 1.2])
CHOICES = len(BIASES)
MASKED = Dict({"action_mask": Box(0, 1, (CHOICES,), "int8"), "seen": Box(-1, 1, (1,))})
NONE = np.zeros(N, np.bool_)


def agent_of(
    name: str, heads: dict[str, list[float]], *, exploit: bool = False, **keys: Any
) -> tuple[AgentBase, FakeParameters, Any]:
    """Return an agent whose outputs are `heads` for every observation, its parameters, and their layout."""
    algorithm = load_algorithm(name, Path())
    section = {
        "path": name,
        "rewards_gamma": GAMMA,
        "normalize_rewards": None,
        "optimizer": "adam",
        "Adam": {"gradient_norm_clipping": None},
        "network": {"dense": [], "separate": False},
    }
    config = algorithm.configure(section | keys)
    server = algorithm.ParameterServer(config, MASKED, Discrete(CHOICES))
    vector = np.zeros_like(server.initial_parameters(0))
    sizes, start = {}, 0
    for head, biases in heads.items():  # without layers, each head has a kernel [1, width] and a bias
        width = len(biases)
        vector[start + width : start + 2 * width] = biases
        sizes[head] = slice(start + width, start + 2 * width)
        start += 2 * width
    assert start == vector.size
    parameters = FakeParameters(vector, target=server.target_interval(), statistics=server.statistics())
    spaces = MASKED, Discrete(CHOICES)
    agent, _ = make_agent(algorithm, config, *spaces, environments=N, exploit=exploit, parameters=parameters)
    return agent, parameters, sizes


def random_masks(count: int, seed: int) -> np.ndarray:
    """Return masks [count, N, choices] with one to four valid actions."""
    rng = np.random.default_rng(seed)
    masks = rng.random((count, N, CHOICES)) < 0.4
    masks[..., 3] |= ~masks.any(axis=-1)
    masks[..., 1] &= ~masks.all(axis=-1)
    return masks


def leaves(mask: np.ndarray) -> list[np.ndarray]:
    return [mask.astype(np.int8), np.zeros((N, 1), np.float32)]


def play(agent: AgentBase, masks: np.ndarray, rewards: np.ndarray, truncate: int | None = None) -> np.ndarray:
    """Play T steps, and one more action. Return the actions [T + 1, N]. All are checked to be valid.

    `truncate`: the step in which environment 0's episode is truncated; its final mask is that of row T + 1.
    """
    actions = [agent.reset(leaves(masks[0]))[0].copy()]
    for t in range(T):
        cut = np.array([t == truncate, False])
        step = StepResult(rewards[t], leaves(masks[t + 1]), NONE, cut if cut.any() else NONE, NONE)
        if cut.any():
            step = replace(step, final_observations=leaves(masks[T + 1]))
        agent.learn()
        actions.append(agent.step(step)[0].copy())
    agent.learn()
    chosen = np.array(actions)
    assert np.take_along_axis(masks[: T + 1], chosen[..., None], axis=-1).all()
    return chosen


PPO: dict[str, Any] = {"minibatches": 1, "normalize_advantages": False, "gae_lambda": 1.0}


@pytest.mark.parametrize(
    ("name", "keys"),
    [*(("da3c", keys) for keys in ({}, {"overlap": False}, {"gae_lambda": 0.7})), ("ppo", PPO)],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_policy_gradient_is_that_of_the_valid_actions(name: str, keys: dict[str, Any], seed: int) -> None:
    value, scale = 0.75, 1 / N if name == "da3c" else 1 / (N * T)  # ppo's loss is a mean over steps, too
    agent, parameters, part = agent_of(
        name, {"policy": BIASES.tolist(), "value": [value]}, episode_len=T, entropy_beta=BETA, **keys
    )
    masks, rewards = random_masks(T + 2, seed), np.random.default_rng(seed).normal(size=(T, N))
    actions = play(agent, masks, rewards)
    expected, advantage = np.zeros(CHOICES), np.zeros(N)
    for t in reversed(range(T)):
        advantage = rewards[t] + GAMMA * value - value + GAMMA * keys.get("gae_lambda", 1.0) * advantage
        for i in range(N):
            p = np.where(masks[t, i], np.exp(BIASES), 0)
            p /= p.sum()
            log_p = np.log(np.where(p > 0, p, 1))
            entropy = -(p * log_p).sum()
            taken = np.arange(CHOICES) == actions[t, i]
            expected += scale * (advantage[i] * (p - taken) + BETA * p * (log_p + entropy))
    gradient = parameters.pushes[0].gradient
    assert gradient is not None
    np.testing.assert_allclose(gradient[part["policy"]], expected, rtol=1e-4, atol=1e-6)


def test_importance_weight_is_that_of_the_valid_actions() -> None:
    agent, parameters, part = agent_of(
        "da3c", {"policy": BIASES.tolist(), "value": [0.0]}, episode_len=1, entropy_beta=0, initial_learning_rate=0.5
    )
    mask = np.array([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]], np.bool_)
    rewards = np.array([1.0, -2.0])
    agent.reset(leaves(mask))
    (first,) = agent.step(StepResult(rewards, leaves(mask), NONE, NONE, NONE))
    agent.learn()
    newer = parameters.parameters[part["policy"]].astype(np.float64)
    value = float(parameters.parameters[part["value"]][0])
    agent.step(StepResult(rewards, leaves(mask), NONE, NONE, NONE))
    agent.learn()
    expected = np.zeros(CHOICES)
    for i in range(N):

        def likelihood(biases: np.ndarray, row: np.ndarray = mask[i]) -> np.ndarray:
            p = np.where(row, np.exp(biases), 0)
            return p / p.sum()

        p, old = likelihood(newer), likelihood(BIASES)
        weight = min(1.0, p[first[i]] / old[first[i]])
        assert weight < 1 or p[first[i]] >= old[first[i]]
        advantage = rewards[i] + GAMMA * value - value
        expected += 0.5 * weight * advantage * (p - (np.arange(CHOICES) == first[i]))
    np.testing.assert_allclose(parameters.pushes[1].gradient[part["policy"]], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "keys", "truncate"),
    [
        ("async_sarsa", {}, None),  # its target after a truncated episode has a random action
        *((name, keys, truncate)
          for name in ("async_q", "n_step_q") for keys in ({}, {"double": True}) for truncate in (None, 1, T - 1)),
    ],
)  # fmt: skip
def test_targets_are_over_valid_actions(name: str, keys: dict[str, Any], truncate: int | None) -> None:
    agent, parameters, part = agent_of(name, {"q": BIASES.tolist()}, update_interval=T, **keys)
    masks, rewards = random_masks(T + 2, 5), np.random.default_rng(3).normal(size=(T, N))
    actions = play(agent, masks, rewards, truncate)
    best = np.where(masks, BIASES, -np.inf).max(axis=-1)
    assert best.min() < BIASES.max() - 1  # a maximum over all actions would differ
    expected, following = np.zeros(CHOICES), best[T]
    for t in reversed(range(T)):
        if name == "async_q":
            following = best[t + 1]
        elif name == "async_sarsa":
            following = BIASES[actions[t + 1]]
        following = np.where([t == truncate, False], best[T + 1], following)
        following = rewards[t] + GAMMA * following
        for i in range(N):
            expected[actions[t, i]] += 2 / N * (BIASES[actions[t, i]] - following[i])
    gradient = parameters.pushes[0].gradient
    assert gradient is not None
    np.testing.assert_allclose(gradient[part["q"]], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["da3c", "n_step_q", "apex"])
@pytest.mark.parametrize("exploit", [False, True])
def test_blocked_environment_is_an_error_that_names_it(name: str, exploit: bool) -> None:
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name, "network": {"dense": [4]}})
    agent, _ = make_agent(algorithm, config, MASKED, Discrete(CHOICES), environments=N, exploit=exploit)
    mask = np.ones((N, CHOICES), np.bool_)
    agent.reset(leaves(mask))
    agent.step(StepResult(np.zeros(N), leaves(mask), NONE, NONE, NONE))
    mask[1] = False
    unwanted = np.array([False, True])
    agent.step(StepResult(np.zeros(N), leaves(mask), unwanted, NONE, NONE, leaves(mask), unwanted))
    with pytest.raises(InvalidObservation, match="action_mask of environment 1 allows no action at step 4"):
        agent.step(StepResult(np.zeros(N), leaves(mask), NONE, NONE, unwanted))


def test_greedy_action_is_the_best_valid_one_in_exploit_mode() -> None:
    masks = random_masks(1, 4)[0]
    best = np.where(masks, BIASES, -np.inf).argmax(axis=1)
    for name, heads in (("da3c", {"policy": BIASES.tolist(), "value": [0.0]}), ("n_step_q", {"q": BIASES.tolist()})):
        agent, *_ = agent_of(name, heads, exploit=True)
        assert agent.reset(leaves(masks))[0].tolist() == best.tolist()
