"""da3c whose flat vector counts every update, for the soak (see `soak_layout` and `soak_parameters`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from relaax.algorithm_base import AgentContext

from .da3c import Agent as Da3cAgent
from .da3c import Config as Da3cConfig
from .da3c import ParameterServer as Da3cParameterServer
from .soak_journal import Journal
from .soak_parameters import LedgerParameters
from .soak_server import AccountingServer


class Config(Da3cConfig):  # type: ignore[misc]  # imported from the folder of algorithms
    """The keys of da3c, and the folder of the journals."""

    journals: str
    segments: int = 1  # shards
    slots: int = 2048


class ParameterServer(AccountingServer, Da3cParameterServer):  # type: ignore[misc]
    """The parameter server of da3c, with counters of updates."""


class Agent(Da3cAgent):  # type: ignore[misc]
    """The agent of da3c, with parameters that record every push."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        layout = ParameterServer(config, context.observation_space, context.action_space).layout()
        self._journal = Journal(Path(config.journals), config.slots)
        parameters = LedgerParameters(context, layout, self._journal, config)
        super().__init__(config, dataclasses.replace(context, parameters=parameters))

    def close(self) -> None:
        super().close()
        self._journal.closed()
