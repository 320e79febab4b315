"""The keys of n_step_q's configuration: those of async_q, and one more."""

from __future__ import annotations

from pydantic import Field

from relaax.algorithm_base import Fixed, Free

from ..async_q.config import DoubleConfig


class Config(DoubleConfig):
    """Asynchronous n-step Q-learning."""

    update_interval: Free[int] = Field(5, ge=1, description="Steps of a rollout, t_max of the paper.")
    lstm: Fixed[bool] = Field(False, description="The network remembers: an LSTM layer of network.lstm_size cells.")

    @property
    def recurrent(self) -> bool:
        return self.lstm
