"""Value methods learn a task that requires correct targets and ends of episodes, from a fixed seed in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.testing import make_agent
from support.corridors import GAMMA, WALK, Corridors, best_actions, greedy_actions
from support.slow_parameters import fast_and_slow
from support.training import RMSPropClient

ENVIRONMENTS = 16
ROLLOUTS: dict[str, Any] = {
    "update_interval": 2,
    "target_interval": 500,
    "final_epsilons": [0.1],
    "final_epsilon_probabilities": [1],
    "exploration_frames": 20_000,
}
REPLAY: dict[str, Any] = {
    "replay_capacity": 4_000,
    "learning_starts": 200,
    "batch_size": 32,
    "samples_per_insert": 8,
    "target_interval": 50,
    "actor_interval": 10,
}
OWN_KEYS: dict[str, dict[str, Any]] = {
    "async_q": ROLLOUTS,
    "async_sarsa": ROLLOUTS,
    "n_step_q": ROLLOUTS,
    "gorila": REPLAY | {"exploration_frames": 5_000},
    "apex": REPLAY,
}
CHECKS = ("algorithms", "relaax/algorithm_base", "relaax/nn", "relaax/optim", "relaax/replay")
NAMES = tuple(OWN_KEYS)


def trained(name: str, updates: int, **keys: Any) -> list[int]:
    """Train, and return the greedy action at every place."""
    algorithm = load_algorithm(name, Path())
    section = {
        "path": name,
        "rewards_gamma": GAMMA,
        "normalize_rewards": None,
        "held_out_states": 0,
        "network": {"dense": []},
        "seed": 3,
    }
    config = algorithm.configure(section | OWN_KEYS[name] | keys)
    spaces = (Corridors.observation_space, Corridors.action_space)
    server = algorithm.ParameterServer(config, *spaces)
    parameters_client = RMSPropClient(server.initial_parameters(config.seed), updates, target=server.target_interval())
    agent, _ = make_agent(algorithm, config, *spaces, environments=ENVIRONMENTS, parameters=parameters_client)
    envs = Corridors(ENVIRONMENTS, seed=4)
    actions = agent.reset(envs.reset())
    while len(parameters_client.pushes) < updates:
        actions = agent.step(envs.step(actions))
        agent.learn()
    return greedy_actions(algorithm, config, parameters_client.parameters)


DUELING = {"dueling": True, "errors": "huber"}


@pytest.mark.parametrize(
    ("name", "keys"),
    fast_and_slow(
        [*((name, {}) for name in NAMES), ("n_step_q", DUELING), ("apex", DUELING)],
        [(name, {}) for name in NAMES],
        *CHECKS,
    ),
)
def test_best_policy_is_found(name: str, keys: dict[str, Any]) -> None:
    actions = trained(name, 2000, **keys)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


@pytest.mark.slow
@pytest.mark.checks(*CHECKS)
@pytest.mark.parametrize("keys", [{"learner": "separate"}, {"prioritized": True, "double": True, "dueling": True}])
def test_gorila_variants_find_the_best_policy(keys: dict[str, Any]) -> None:
    actions = trained("gorila", 2000, **keys)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


@pytest.mark.slow
@pytest.mark.checks(*CHECKS)
@pytest.mark.parametrize("name", ["async_q", "n_step_q"])
def test_double_estimates_find_the_best_policy(name: str) -> None:
    actions = trained(name, 2000, double=True)
    best = best_actions()
    assert {place: actions[place] for place in best} == best


@pytest.mark.parametrize("name", ["n_step_q", "gorila"])
def test_other_discount_learns_another_policy(name: str) -> None:
    """This shows that the tests above do not pass by chance or with any other policy."""
    actions = trained(name, 1500, rewards_gamma=1.0)
    assert set(actions) == {WALK}
