"""Reproducible training of workers with a real shard in the test's process, in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax.algorithm_base import AgentBase, AgentContext
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.gradient_filters import agent_parameters
from relaax.hosting.loader import Algorithm
from relaax.parameters.interfaces import FlatVector, ParameterClientBase, Pulled, Pushed, Registered, Registration
from relaax.policy.policy import NoMetrics
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.shard.shard import Push, Shard
from relaax.server.parameter_server.shard.state import Discard
from support.training import World


class ShardInProcess(ParameterClientBase):
    """A parameters client of a shard in the same process. Metrics are discarded."""

    metrics = NoMetrics()

    def __init__(self, shard: Shard, worker: str) -> None:
        self._shard, self._worker = shard, worker
        self._push_id = self._version = self._step = 0

    def register(self, registration: Registration) -> Registered:
        return Registered(self._shard.size, tuple(range(registration.environments)), self._step)

    def pull(self) -> Pulled:
        counters, parameters, statistics = self._shard.pull()
        self._version, self._step = counters.version, counters.env_steps
        target = self._shard.target
        return Pulled(
            parameters,
            counters.version,
            counters.env_steps,
            statistics,
            counters.frames,
            None if target is None else target.vector,
        )

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        withheld: bool = False,
    ) -> Pushed:
        self._push_id += 1
        push = Push(
            self._worker, self._push_id, self._version, gradient, env_steps, env_steps, self._step, {}, withheld
        )
        applied = self._shard.push(push)
        discard, counters = applied.outcome.discard, applied.counters
        discarded = None if discard is Discard.NONE else discard.name.lower()
        pulled = self.pull() if want_parameters else None
        return Pushed(discarded, counters.env_steps, counters.version, applied.outcome.staleness, pulled)

    def flush(self) -> None:
        pass

    @property
    def global_step(self) -> int:
        return self._step

    def close(self) -> None:
        pass


def train_through_a_shard(
    algorithm: Algorithm, section: dict[str, Any], all_envs: Sequence[World], steps: int
) -> Shard:
    """Train one worker for each batch of environments, and return the shard after `steps` steps of each worker.

    The workers take turns, one step each. If each push is an update, W workers have a staleness of W - 1.
    """
    config = algorithm.configure({"path": algorithm.name, "seed": 3} | section)
    spaces = all_envs[0].observation_space, all_envs[0].action_space
    description = fingerprint(algorithm.name, config, *spaces)
    spec = AlgorithmModels(algorithm, config)(description)
    shard = Shard(
        spec.initial,
        spec.optimizer,
        spec.schedule,
        max_staleness=spec.max_staleness,
        compensation=spec.compensation,
        target=spec.target,
        rate_factors=spec.rate_factors,
    )
    agents: list[AgentBase] = []
    for number, envs in enumerate(all_envs):
        client = ShardInProcess(shard, str(number))
        registered = client.register(Registration(description, environments=envs.environments))
        actors = tuple(actor + number * envs.environments for actor in registered.actors)
        parameters = agent_parameters(client, config)
        context = AgentContext(*spaces, envs.environments, actors, config.seed, False, parameters, client.metrics)
        agents.append(algorithm.Agent(config, context))
    actions = [agent.reset(envs.reset()) for agent, envs in zip(agents, all_envs, strict=True)]
    for _ in range(steps):
        for i, (agent, envs) in enumerate(zip(agents, all_envs, strict=True)):
            actions[i] = agent.step(envs.step(actions[i]))
            agent.learn()
    assert np.isfinite(shard.pull()[1]).all()
    return shard
