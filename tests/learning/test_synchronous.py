"""Synchronous updates: workers of a real parameter server learn as one worker with all environments."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
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
from support.processes import wait_until
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


def configured(algorithm: Algorithm, section: dict[str, Any]) -> Any:
    return algorithm.configure({"path": algorithm.name, "sync": "all", "sync_patience": BOUND, **section})


def client_of(servers: Any, transport: str) -> ParameterClient:
    return ParameterClient(servers.addresses, transport=transport)  # type: ignore[arg-type]


class Worker:
    """An agent with a client of its own. It plays in a thread, and then closes the client."""

    def __init__(self, algorithm: Algorithm, config: Any, envs: World, client: ParameterClient) -> None:
        self.client, self._envs = client, envs
        spaces = envs.observation_space, envs.action_space
        description = fingerprint(algorithm.name, config, *spaces)
        registered = client.register(Registration(description, environments=envs.environments))
        context = AgentContext(
            *(*spaces, envs.environments, registered.actors, config.seed, False),
            *(agent_parameters(client, config), client.metrics),
        )
        self.agent = algorithm.Agent(config, context)
        self.pulls: list[int] = []
        """The agent's version after each step."""
        self._failures: list[BaseException] = []

    def play(self, steps: int) -> None:
        self._thread = threading.Thread(target=self._play, args=(steps,), daemon=True)
        self._thread.start()

    def _play(self, steps: int) -> None:
        try:
            actions = self.agent.reset(self._envs.reset())
            for _ in range(steps):
                actions = self.agent.step(self._envs.step(actions))
                self.agent.learn()
                self.pulls.append(getattr(self.agent, "_version", 0))
        except BaseException as error:
            self._failures.append(error)
        finally:
            self.client.close()

    def finish(self) -> None:
        self._thread.join(BOUND)
        assert not self._thread.is_alive()
        assert self._failures == []


def trained(
    section: dict[str, Any],
    all_envs: Sequence[World],
    steps: int,
    shards: int = 1,
    transport: str = "grpc",
    algorithm: Algorithm = DA3C,
) -> tuple[npt.NDArray[np.float32], int]:
    """Train with a worker for each of `all_envs`, in threads. Return the parameters and the number of updates."""
    config = configured(algorithm, section)
    with sharded(shards, AlgorithmModels(algorithm, config)) as servers, ExitStack() as opened:
        workers = [  # in order, so that the actors are the same in each run
            Worker(algorithm, config, envs, opened.enter_context(closing(client_of(servers, transport))))
            for envs in all_envs
        ]
        for worker in workers:  # from now on, updates wait for these workers
            worker.client.push(None, 0)
        for worker in workers:
            worker.play(steps)
        for worker in workers:
            worker.finish()
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


def test_late_worker_of_ppo_gathers_rollouts_when_the_others_do() -> None:
    """Else each worker would wait in its epochs while the other one gathers a rollout."""
    config = configured(PPO, {"network": {"dense": [4]}, "episode_len": 5, "epochs": 3, "minibatches": 2})
    with sharded(1, AlgorithmModels(PPO, config)) as servers, ExitStack() as opened:
        early, late = (
            Worker(PPO, config, Recording(part, 400), opened.enter_context(closing(client_of(servers, "auto"))))
            for part in (slice(0, 3), slice(3, 8))
        )
        shard = servers.all[0].core.model.shard  # type: ignore[union-attr]
        early.play(400)
        wait_until(lambda: shard.counters.version >= 20, "the first worker has made epochs")
        late.play(100)
        for worker in (early, late):
            worker.finish()
        assert {version % 6 for version in early.pulls + late.pulls[5:]} == {0}
        shared = set(late.pulls[5:])
        assert len(shared) >= 15
        assert shared <= set(early.pulls)
        assert shard.counters.discarded <= 1, "only the late worker's first gradient may be stale"


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
