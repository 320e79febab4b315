"""Agents that act at random, without a parameter server."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Leaves, StepResult
from relaax.client.connection.values import values_of
from relaax.client.program.agents import RandomAgent
from relaax.parameters.interfaces import (
    FlatVector,
    ParameterClientBase,
    ParameterServerError,
    Pulled,
    Pushed,
    Registered,
    Registration,
)
from relaax.policy.policy import NoMetrics
from relaax.server.rlx_server.workers.checkpoint_client import unassigned_actors


class RandomActions(AgentBase):
    """An agent whose actions are random."""

    out_of_step = chosen_actions = True

    def __init__(self, config: ConfigBase, context: AgentContext) -> None:
        super().__init__(config, context)
        seed = int(np.random.default_rng([context.seed, *context.actors]).integers(2**31))
        self._random = RandomAgent(context.observation_space, context.action_space, context.environments, seed)
        self._actions = values_of(context.action_space)

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._act(step.observations)

    def _act(self, observations: Leaves) -> Leaves:
        return self._actions.to_leaves(self._random.draw(observations), 1)


class NoParameters(ParameterClientBase):
    """A parameters client without parameters. It ignores metrics."""

    def __init__(self) -> None:
        self.metrics = NoMetrics()

    def register(self, registration: Registration) -> Registered:
        return Registered(0, unassigned_actors(registration), 0)

    def pull(self) -> Pulled:
        return Pulled(np.zeros(0, np.float32), 0, 0)

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        """Raise ParameterServerError: there is nothing to train."""
        raise ParameterServerError("this server acts at random, so it accepts no gradients")

    def flush(self) -> None:
        """Do nothing: no server receives metrics."""

    @property
    def global_step(self) -> int:
        return 0

    def close(self) -> None:
        """Do nothing."""
