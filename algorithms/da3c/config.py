"""The keys of da3c's configuration."""

from __future__ import annotations

from pydantic import Field

from relaax.algorithm_base import Fixed, Free
from relaax.algorithm_base.network import AgentConfig


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
