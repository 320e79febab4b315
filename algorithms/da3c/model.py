"""The keys of da3c's configuration, and its model for the parameter server."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import Field

from relaax.algorithm_base import Fixed, Free, ParameterServerBase
from relaax.algorithm_base.actions import HEAD, DiscreteActions
from relaax.algorithm_base.network import AgentConfig, actor_critic_network, agent_statistics
from relaax.nn.initialization import orthogonal_parameters


class Config(AgentConfig):
    """Distributed A3C."""

    episode_len: Free[int] = Field(5, ge=1, description="Steps of a rollout, t_max of the paper.")
    gae_lambda: Free[float] = Field(
        1.0, ge=0, le=1, description="Lambda of generalized advantages; 1 means the n-step returns of the paper."
    )
    entropy_beta: Free[float] = Field(
        0.01, ge=0, description="Weight of the policy's entropy, against early certainty."
    )
    value_loss_weight: Free[float] = Field(0.5, gt=0, description="Weight of the squared error of the value.")
    overlap: Free[bool] = Field(
        True,
        description="A worker learns while its environments step: the first action of a rollout is then that of "
        "parameters one update older. false: it learns before it answers, in the paper's order.",
    )
    greedy_exploit: Free[bool] = Field(True, description="In exploit mode take the most probable action.")
    lstm: Fixed[bool] = Field(False, description="The network remembers: an LSTM layer of network.lstm_size cells.")

    @property
    def recurrent(self) -> bool:
        return self.lstm


class ParameterServer(ParameterServerBase):
    """One actor-critic network, a shared optimizer, and the statistics that inputs and rewards are normalised with."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return orthogonal kernels, those of the policy so small that all actions begin equally likely."""
        spec = actor_critic_network(self.config, self.observation_space, DiscreteActions(self.action_space).policy)
        return orthogonal_parameters(spec, seed, {HEAD: 0.01, "value": 1.0})

    def statistics(self) -> Mapping[str, int]:
        return agent_statistics(self.config, self.observation_space)
