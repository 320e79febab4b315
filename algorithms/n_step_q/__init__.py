"""n-step Q-learning (Mnih et al. 2016), asynchronous.

Algorithm S2 of the paper, with workers on many machines in place of threads.

The agent is that of async_q with other targets and an optional LSTM; goals and non-goals are the same. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from relaax.algorithm_base import Fixed, Free, lazy_exports

from .._value_based.model import ParameterServer, ValueConfig

if TYPE_CHECKING:
    from .._value_based.agent import Agent


class Config(ValueConfig):
    """Asynchronous n-step Q-learning."""

    name = "n_step_q"

    update_interval: Free[int] = Field(5, ge=1, description="Steps of a rollout, t_max of the paper.")
    double: Free[bool] = Field(
        False,
        description="Use double Q-learning (van Hasselt et al. 2016).",
    )
    lstm: Fixed[bool] = Field(False, description="Add an LSTM layer of network.lstm_size cells.")


__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".._value_based.agent"})
