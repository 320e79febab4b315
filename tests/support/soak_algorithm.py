"""da3c whose flat vector keeps account of every update, for the soak (see `soak_layout` and `soak_parameters`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext, Space
from relaax.optim.optimizers import Add, OptimizerSpec

from .da3c import Agent as Da3cAgent
from .da3c import Config as Da3cConfig
from .da3c import ParameterServer as Da3cParameterServer
from .soak_journal import Journal
from .soak_layout import Layout
from .soak_parameters import STATISTIC, LedgerParameters


class Config(Da3cConfig):  # type: ignore[misc]  # found where algorithms are loaded from
    """da3c's keys, and where the account is kept."""

    journals: str
    segments: int = 1  # shards
    slots: int = 2048


class ParameterServer(Da3cParameterServer):  # type: ignore[misc]
    """Shards add what they are sent."""

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        network = super().initial_parameters(seed)
        return Layout(len(network), self.config.segments, self.config.slots).spread(network)

    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), STATISTIC: 1}

    def optimizer(self) -> OptimizerSpec:
        return Add()


class Agent(Da3cAgent):  # type: ignore[misc]
    """da3c's, with parameters that keep account."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        layout = _layout(config, context.observation_space, context.action_space)
        self._journal = Journal(Path(config.journals), config.slots)
        parameters = LedgerParameters(context, layout, self._journal, config)
        super().__init__(config, dataclasses.replace(context, parameters=parameters))

    def close(self) -> None:
        super().close()
        self._journal.closed()


def _layout(config: Config, observation_space: Space, action_space: Space) -> Layout:
    network = Da3cParameterServer(config, observation_space, action_space).initial_parameters(config.seed)
    return Layout(len(network), config.segments, config.slots)
