"""da3c learns a task that requires correct signs, returns and ends of episodes, from a fixed seed in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.testing import make_agent
from support.corridors import GAMMA, WALK, Corridors, best_actions, greedy_actions
from support.training import RMSPropClient

DA3C = load_algorithm("da3c", Path())
ENVIRONMENTS = 16


def trained(updates: int, **keys: Any) -> list[int]:
    """Train, and return the greedy action at every place."""
    section = {
        "path": "da3c",
        "episode_len": 2,
        "rewards_gamma": GAMMA,
        "entropy_beta": 0.1,
        "normalize_rewards": None,
        "network": {"dense": [], "separate": False},
        "seed": 3,
    } | keys
    config = DA3C.configure(section)
    spaces = (Corridors.observation_space, Corridors.action_space)
    parameters_client = RMSPropClient(DA3C.ParameterServer(config, *spaces).initial_parameters(config.seed), updates)
    agent, _ = make_agent(DA3C, config, *spaces, environments=ENVIRONMENTS, parameters=parameters_client)
    envs = Corridors(ENVIRONMENTS, seed=4)
    actions = agent.reset(envs.reset())
    while len(parameters_client.pushes) < updates:
        actions = agent.step(envs.step(actions))
        agent.learn()
    return greedy_actions(DA3C, config, parameters_client.parameters)


def test_best_policy_is_found() -> None:
    actions = trained(1500)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


def test_other_discount_learns_another_policy() -> None:
    """This shows that the test above does not pass by chance or with any other policy."""
    actions = trained(500, rewards_gamma=1.0)
    assert set(actions) == {WALK}
