"""da3c learns the corridors with workers that update shared parameters without locks."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from relaax.algorithm_base import AgentContext, load_algorithm
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.gradient_filters import agent_parameters
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration, TrainingEnded
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.transport.segments import SUPPORTED
from support.corridors import GAMMA, Corridors, best_actions, greedy_actions
from support.shards import sharded

DA3C = load_algorithm("da3c", Path())
WORKERS, ENVIRONMENTS, UPDATES = 2, 16, 1500
SECTION: dict[str, Any] = {
    "path": "da3c",
    "seed": 3,
    "episode_len": 2,
    "rewards_gamma": GAMMA,
    "entropy_beta": 0.1,
    "normalize_rewards": None,
    "network": {"dense": [], "separate": False},
    "max_global_step": 2
    * UPDATES
    * ENVIRONMENTS,  # an update takes two steps of each environment; void steps do not count
    "RMSProp": {"decay": 0.99, "epsilon": 0.01},
    "initial_learning_rate": 0.05,
}


def work(config: Any, address: str, envs: Corridors) -> None:
    """Run one worker until training ends."""
    spaces = envs.observation_space, envs.action_space
    with closing(ParameterClient(address, transport="hogwild")) as parameters_client, suppress(TrainingEnded):
        description = fingerprint(DA3C.name, config, *spaces)
        registered = parameters_client.register(Registration(description, environments=envs.environments))
        parameters, actors = agent_parameters(parameters_client, config), registered.actors
        context = AgentContext(
            *spaces, envs.environments, actors, config.seed, False, parameters, parameters_client.metrics
        )
        agent = DA3C.Agent(config, context)
        actions = agent.reset(envs.reset())
        while True:
            actions = agent.step(envs.step(actions))
            agent.learn()


@pytest.mark.skipif(not SUPPORTED, reason="the system cannot pass shared memory between processes")
def test_best_policy_is_found() -> None:
    config = DA3C.configure(SECTION)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(config, shards.addresses[0], Corridors(ENVIRONMENTS, seed=4 + number))
        except BaseException as error:
            failures.append(error)

    with sharded(1, AlgorithmModels(DA3C, config)) as shards:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        counters, parameters = shards.leader.core.model.shard.counters, shards.parameters
    assert counters.env_steps >= config.max_global_step
    assert (counters.version >= UPDATES, counters.discarded) == (True, 0)
    actions = greedy_actions(DA3C, config, parameters)
    best = best_actions()
    assert {place: actions[place] for place in best} == best
