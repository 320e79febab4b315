"""Actions, exploration and insertions of the agents of sac and apex_dpg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, Space, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, RandomEnvironments, live, make_agent
from relaax.algorithm_base.testing.harness import local_replay
from relaax.replay.local import LocalReplay
from support.table_copies import state_of

OBSERVATIONS = Box(-1, 1, shape=(3,))
ACTIONS = Dict({"arm": Box(-4, 2, shape=(2,)), "grip": Box(0, 1, shape=(1,), dtype="float64")})
KEYS: dict[str, Any] = {"replay_capacity": 5_000, "learning_starts": 4_000, "network": {"dense": [8]}}


def agent_of(
    name: str, environments: int = 4, exploit: bool = False, actor_count: int = 0, first_actor: int = 0, **keys: Any
) -> tuple[Any, FakeParameters, LocalReplay | None]:
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name} | KEYS | keys)
    server = algorithm.ParameterServer(config, OBSERVATIONS, ACTIONS)
    parameters_client = FakeParameters(
        server.initial_parameters(1), learning_rate=0.0, target=server.target_interval(), actor_count=actor_count
    )
    replay = None if exploit else local_replay(algorithm, config, OBSERVATIONS, ACTIONS, environments)
    spaces = OBSERVATIONS, ACTIONS
    agent, _ = make_agent(
        algorithm,
        config,
        *spaces,
        environments=environments,
        exploit=exploit,
        first_actor=first_actor,
        parameters=parameters_client,
        replay=replay,
    )
    return agent, parameters_client, replay


def worlds(environments: int = 4) -> RandomEnvironments:
    return RandomEnvironments(OBSERVATIONS, ACTIONS, environments, end_probability=0.0)


@pytest.mark.parametrize("name", ["sac", "apex_dpg"])
def test_actions_do_not_wait_for_insertions(name: str) -> None:
    """The worker sends the actions before it calls `learn`. At the end, all complete transitions are inserted."""
    agent, _, replay = agent_of(name, n_step=1)
    assert replay is not None
    world = worlds()
    actions = agent.reset(world.reset())
    for number in range(7):
        agent.learn()
        inserted = replay.table.size
        actions = agent.step(world.step(actions))
        assert replay.table.size == inserted, f"step {number} inserted"
    assert 0 < inserted < 4 * 7
    agent.close()
    assert replay.table.size == 4 * 7


@pytest.mark.parametrize("name", ["sac", "apex_dpg"])
def test_first_actions_are_uniform_within_the_bounds(name: str) -> None:
    agent, _, _ = agent_of(name, 4_000)
    arm, grip = agent.reset([np.zeros((4_000, 3), np.float32)])
    assert arm.dtype == np.float32
    assert grip.dtype == np.float64
    for leaf, low, high in ((arm, -4, 2), (grip, 0, 1)):
        assert leaf.min() >= low
        assert leaf.max() <= high
        counts, _ = np.histogram(leaf[:, 0], bins=8, range=(low, high))
        np.testing.assert_allclose(counts, 500, atol=120)


@pytest.mark.parametrize("name", ["sac", "apex_dpg"])
def test_policy_acts_after_the_random_steps(name: str) -> None:
    """The memory has the actions from -1 to 1, those of the policy with little noise after 40 steps."""
    keys: dict[str, Any] = {"random_steps": 40, "actor_interval": 1, "n_step": 1}
    keys |= {"noise": 0.0} if name == "apex_dpg" else {}
    agent, parameters_client, replay = agent_of(name, **keys)
    parameters = parameters_client.parameters.copy()
    if name == "sac":  # the policy's standard deviation becomes e^-8
        width = 3 * 8 + 8 + 2 * (8 * 3 + 3)
        parameters[width - 3 : width] = -8
    parameters_client.publish(parameters, {})
    live(agent, worlds(), 100)
    assert replay is not None
    actions = state_of(replay.table)["columns/action"]
    assert actions.shape[1:] == (3,)
    sizes = np.abs(actions).max(axis=1)
    assert 40 <= np.count_nonzero(sizes > 0.1) <= 44, "initially, the policy's actions are near 0"


def test_noise_of_apex_dpg_differs_between_actors() -> None:
    agent, parameters_client, _ = agent_of(
        "apex_dpg", 2, actor_count=5, first_actor=1, random_steps=0, noise=0.4, noise_exponent=2, actor_interval=1
    )
    live(agent, worlds(2), 1)
    recorded = [value for name, value in parameters_client.scalars if name == "noise"]
    assert recorded[0] == pytest.approx(np.mean([0.4**1.5, 0.4**2]))
    own = np.random.default_rng([0, 1, 2])
    first = np.clip(np.array([[0.4**1.5], [0.4**2]]) * own.standard_normal((2, 3)), -1, 1)
    again, _, _ = agent_of("apex_dpg", 2, actor_count=5, first_actor=1, random_steps=0, noise=0.4, noise_exponent=2)
    arm, _ = again.reset([np.zeros((2, 3), np.float32)])
    np.testing.assert_allclose(arm, -1 + 3 * first[:, :2], atol=1e-5)


@pytest.mark.parametrize("name", ["sac", "apex_dpg"])
def test_greedy_exploit_takes_the_mean(name: str) -> None:
    agent, _, _ = agent_of(name, exploit=True)
    (first, _), (second, _) = (agent.reset([np.full((4, 3), 0.3, np.float32)]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    noisy, _, _ = agent_of(name, exploit=True, greedy_exploit=False)
    (first, _), (second, _) = (noisy.reset([np.full((4, 3), 0.3, np.float32)]) for _ in range(2))
    assert np.abs(first - second).min() > 0


def test_actors_of_apex_dpg_set_priorities_by_their_critic() -> None:
    """With a critic that is 2 everywhere, the priority is |R + discount 2 - 2|."""
    keys = {"n_step": 2, "rewards_gamma": 0.5, "priority_offset": 0.125}
    agent, parameters_client, replay = agent_of("apex_dpg", 2, **keys)
    parameters = np.zeros_like(parameters_client.parameters)
    parameters[-1] = 2
    parameters_client.publish(parameters, {})
    agent._agent._use(parameters_client.pull())

    class Ones(RandomEnvironments):
        def step(self, actions: Any) -> Any:
            step = super().step(actions)
            step.rewards = np.ones(2)
            return step

    live(agent, Ones(OBSERVATIONS, ACTIONS, 2, end_probability=0.0), 60)
    assert replay is not None
    np.testing.assert_allclose(state_of(replay.table)["priorities"], abs(1 + 0.5 + 0.25 * 2 - 2) + 0.125, rtol=1e-5)


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (Discrete(3), "it handles Boxes of real numbers, not Discrete"),
        (Dict({"aim": Box(-1, 1, (2,)), "jump": Discrete(2)}), r"at action\.jump|at action\['jump'\]|jump"),
        (Box(0, 9, shape=(2,), dtype="int64"), "real numbers"),
        (Box(-np.inf, 1, shape=(2,)), "needs bounds below 1,000,000"),
        (Box(-3e38, 3e38, shape=(2,)), "RescaleAction"),
    ],
)
@pytest.mark.parametrize("name", ["sac", "apex_dpg"])
def test_unsupported_actions_are_refused(name: str, space: Space, sentence: str) -> None:
    import re

    algorithm = load_algorithm(name, Path())
    refusal = algorithm.Agent.refusal(algorithm.configure({"path": name}), OBSERVATIONS, space)
    assert refusal is not None
    assert refusal.startswith(f"{name} cannot handle the action space")
    assert re.search(sentence, refusal)
