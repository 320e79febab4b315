"""Value methods learn, from a seed and in seconds, what they cannot with a wrong target or end of an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.testing import make_agent
from support.corridors import GAMMA, WALK, Corridors, best_actions, greedy_actions
from support.training import RMSPropBridge

ENVIRONMENTS = 16
NAMES = ("async_q", "async_sarsa", "n_step_q")


def trained(name: str, updates: int, **keys: Any) -> list[int]:
    """The greedy action at every place, after training."""
    algorithm = load_algorithm(name, Path())
    section = {
        "path": name,
        "update_interval": 2,
        "target_interval": 500,
        "rewards_gamma": GAMMA,
        "final_epsilons": [0.1],
        "final_epsilon_probabilities": [1],
        "exploration_frames": 20_000,
        "normalize_rewards": None,
        "held_out_states": 0,
        "network": {"dense": []},
        "seed": 3,
    } | keys
    config = algorithm.configure(section)
    spaces = (Corridors.observation_space, Corridors.action_space)
    server = algorithm.ParameterServer(config, *spaces)
    bridge = RMSPropBridge(server.initial_parameters(config.seed), updates, target=server.target_interval())
    agent, _ = make_agent(algorithm, config, *spaces, environments=ENVIRONMENTS, parameters=bridge)
    world = Corridors(ENVIRONMENTS, seed=4)
    actions = agent.reset(world.reset())
    while len(bridge.pushes) < updates:
        actions = agent.step(world.step(actions))
        agent.learn()
    return greedy_actions(algorithm, config, bridge.parameters)


@pytest.mark.parametrize("keys", [{}, {"dueling": True, "errors": "huber"}])
@pytest.mark.parametrize("name", NAMES)
def test_the_best_policy_is_found(name: str, keys: dict[str, Any]) -> None:
    actions = trained(name, 2000, **keys)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


@pytest.mark.parametrize("name", ["async_q", "n_step_q"])
def test_double_estimates_find_it_too(name: str) -> None:
    actions = trained(name, 2000, double=True)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


@pytest.mark.parametrize("name", NAMES)
def test_what_is_learned_follows_from_the_discount(name: str) -> None:
    """The test above would not pass by chance, nor whatever is learned."""
    actions = trained(name, 1500, rewards_gamma=1.0)
    assert set(actions) == {WALK}
