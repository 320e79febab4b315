"""Synchronous updates: workers of a real parameter server learn as one worker with all environments."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relaax.algorithm_base import AgentContext, Box, Discrete, Leaves, StepResult, load_algorithm
from relaax.algorithm_base.testing import FakeParameters
from relaax.cli.run.plan import make_plan
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.gradient_filters import agent_parameters
from relaax.hosting.loader import Algorithm
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from relaax.server.parameter_server.command.models import AlgorithmModels
from support.gym_training import GymnasiumEnvironments
from support.shards import sharded
from support.training import World, judge

pytestmark = pytest.mark.checks(
    *("algorithms/da3c", "algorithms/ppo", "relaax/algorithm_base", "relaax/nn", "relaax/optim", "relaax/parameters"),
    "relaax/server/parameter_server",
)
DA3C, PPO = (load_algorithm(name, Path()) for name in ("da3c", "ppo"))
BOUND = 100.0


class Recording:
    """Recorded observations, rewards and ends of episodes of some environments. Actions have no effect."""

    observation_space, action_space = Box(shape=(3,)), Discrete(1)

    def __init__(self, environments: slice, steps: int) -> None:
        rng = np.random.default_rng(7)
        self._observations = rng.normal(size=(steps + 1, 8, 3)).astype(np.float32)[:, environments]
        self._rewards = rng.normal(size=(steps, 8))[:, environments]
        self._ends = rng.integers(0, 8, (steps, 8))[:, environments]  # 0: terminated, 1: truncated
        self.environments = self._rewards.shape[1]
        self._step = 0

    def reset(self) -> Leaves:
        return [self._observations[0]]

    def step(self, actions: Leaves) -> StepResult:
        at = self._step
        self._step += 1
        terminated, truncated = self._ends[at] == 0, self._ends[at] == 1
        final = [self._observations[at] + 1]
        return StepResult(
            self._rewards[at], [self._observations[at + 1]], terminated, truncated, np.zeros_like(terminated), final
        )


def trained(
    section: dict[str, Any],
    all_envs: Sequence[World],
    steps: int,
    shards: int = 1,
    transport: str = "grpc",
    algorithm: Algorithm = DA3C,
) -> tuple[npt.NDArray[np.float32], int]:
    """Train with a worker for each of `all_envs`, in threads. Return the parameters and the number of updates."""
    config = algorithm.configure({"path": algorithm.name, "sync": "all", "sync_patience": BOUND, **section})
    spaces = all_envs[0].observation_space, all_envs[0].action_space
    description = fingerprint(algorithm.name, config, *spaces)
    failures: list[BaseException] = []

    def work(agent: Any, envs: World, client: ParameterClient) -> None:
        try:
            actions = agent.reset(envs.reset())
            for _ in range(steps):
                actions = agent.step(envs.step(actions))
                agent.learn()
        except BaseException as error:
            failures.append(error)
        finally:
            client.close()

    with sharded(shards, AlgorithmModels(algorithm, config)) as servers, ExitStack() as opened:
        workers = []
        for envs in all_envs:  # in order, so that the actors are the same in each run
            client = ParameterClient(servers.addresses, transport=transport)  # type: ignore[arg-type]
            opened.callback(client.close)
            registered = client.register(Registration(description, environments=envs.environments))
            context = AgentContext(
                *(*spaces, envs.environments, registered.actors, config.seed, False),
                *(agent_parameters(client, config), client.metrics),
            )
            workers.append((algorithm.Agent(config, context), envs, client))
        for _, _, client in workers:  # from now on, updates wait for these workers
            client.push(None, 0)
        threads = [threading.Thread(target=work, args=worker, daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND)
            assert not thread.is_alive()
        assert failures == []
        counters = [one.core.model.shard.counters for one in servers.all]  # type: ignore[union-attr]
        assert {each.discarded for each in counters} == {0}
        return servers.parameters, counters[0].version


EPOCHS = {"episode_len": 5, "epochs": 3, "minibatches": 1, "normalize_advantages": False}


@pytest.mark.parametrize(
    ("algorithm", "shards", "transport"),
    [(DA3C, 1, "grpc"), (DA3C, 1, "auto"), (DA3C, 2, "auto"), (PPO, 1, "auto")],
    ids=lambda value: getattr(value, "name", None),
)
def test_two_agents_learn_as_one_with_all_environments(algorithm: Algorithm, shards: int, transport: str) -> None:
    section = {
        "network": {"dense": [16], "separate": False},
        "normalize_rewards": None,
        "rewards_gamma": 0.9,
        "initial_learning_rate": 1e-2,
        "max_global_step": 10_000,
        "RMSProp": {"gradient_norm_clipping": 0.5 if shards == 1 else None},
        **(EPOCHS if algorithm is PPO else {}),
    }
    steps = 60
    one, updates = trained(section, [Recording(slice(0, 8), steps)], steps, shards, transport, algorithm)
    parts = [Recording(part, steps) for part in (slice(0, 2), slice(2, 8))]
    two, same = trained(section, parts, steps, shards, transport, algorithm)
    assert updates == same >= 10
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-6)


def test_workers_learn_cartpole_together() -> None:
    """Random play returns 20."""
    section = dict(make_plan("da3c_gym_cartpole", []).configuration.algorithm) | {"path": "da3c", "seed": 11}
    all_envs = [GymnasiumEnvironments("CartPole-v1", 4, seed) for seed in (11, 1011)]
    parameters, updates = trained(section, all_envs, 8000, transport="auto")
    assert updates >= 1590
    evaluated = GymnasiumEnvironments("CartPole-v1", 10, 1_000_000)
    agent = judge(DA3C, section, evaluated, 10, FakeParameters(parameters))
    actions, running, total = agent.reset(evaluated.reset()), np.ones(10, np.bool_), 0.0
    while running.any():
        step = evaluated.step(actions)
        total += float(step.rewards[running].sum())
        running &= ~step.ended
        actions = agent.step(step)
    assert total / 10 >= 300
