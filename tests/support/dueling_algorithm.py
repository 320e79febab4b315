"""An algorithm for tests of policies: greedy actions of a dueling network, without learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Leaves, ParameterServerBase, StepResult
from relaax.algorithm_base.acting.policy_graph import LargestOutput, PolicyGraph
from relaax.algorithm_base.network import NetworkConfig, network_for
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.nn.action_values import ActionValues
from relaax.nn.engine import make_actor
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import NetworkSpec
from relaax.rlx import Discrete, Space

HISTORY = 2


class Config(ConfigBase):
    both: bool = Field(False, description="Whether the model outputs the value too.")
    network: NetworkConfig = Field(NetworkConfig(), description="The network.")


def network_of(config: Config, observation_space: Space, action_space: Space) -> tuple[ActionValues, NetworkSpec]:
    assert isinstance(action_space, Discrete)
    values = ActionValues(action_space.n, dueling=True)
    return values, network_for(config.network, observation_space, values.heads, HISTORY, streams=True)


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        _, spec = network_of(self.config, self.observation_space, self.action_space)
        return orthogonal_parameters(spec, seed, {})


class Agent(AgentBase):
    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        self._values, self._spec = network_of(config, context.observation_space, context.action_space)
        self._encoder = ObservationEncoder(context.observation_space, context.environments, HISTORY)
        self._actor = make_actor(self._spec, self._encoder.dtype)
        self._actor.set_parameters(context.parameters.pull().parameters)

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(self._encoder.reset(observations))

    def step(self, step: StepResult) -> Leaves:
        return self._act(self._encoder.push(step.observations, step.restart))

    def policy_graph(self) -> PolicyGraph:
        heads = tuple(self._values.heads) if self.config.both else ("advantage",)
        action = (LargestOutput("advantage", self.context.action_space.start),)
        return PolicyGraph(self._spec, self.context.parameters.pull().parameters, heads, action, HISTORY)

    def _act(self, inputs: npt.NDArray[Any]) -> Leaves:
        outputs, _ = self._actor.act(inputs, np.zeros((len(inputs), 0), np.float32))
        return [self._values.values(outputs).argmax(axis=1) + self.context.action_space.start]
