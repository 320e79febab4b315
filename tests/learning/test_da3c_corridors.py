"""da3c learns, from a seed and in seconds, what it cannot learn with a wrong sign, return or end of an episode."""

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
    """The greedy action at every place, after training."""
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
    world = Corridors(ENVIRONMENTS, seed=4)
    actions = agent.reset(world.reset())
    while len(parameters_client.pushes) < updates:
        actions = agent.step(world.step(actions))
        agent.learn()
    return greedy_actions(DA3C, config, parameters_client.parameters)


def test_best_policy_is_found() -> None:
    actions = trained(1500)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


def test_other_discount_learns_another_policy() -> None:
    """The test above would not pass by chance, nor whatever is learned."""
    actions = trained(500, rewards_gamma=1.0)
    assert set(actions) == {WALK}
