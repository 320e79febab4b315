"""Ape-X whose updates and items are counted (see `soak_parameters` and `replay_soak_items`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from relaax.algorithm_base import AgentContext, LearnerContext
from relaax.replay.interfaces import Sampled
from relaax.replay.spec import TableDeclaration

from .apex import Agent as ApexAgent
from .apex import Config as ApexConfig
from .apex import Learner as ApexLearner
from .apex import ParameterServer as ApexParameterServer
from .apex import Replay as ApexReplay
from .replay_soak_items import NumberedItems, with_serials
from .soak_journal import Journal
from .soak_parameters import LedgerParameters
from .soak_server import AccountingServer


class Config(ApexConfig):  # type: ignore[misc]  # imported from the folder of algorithms
    """The keys of Ape-X, and the folders of the journals and of the counts of items."""

    journals: str
    items: str
    segments: int = 1  # shards of the parameter server
    slots: int = 2048


class Replay(ApexReplay):  # type: ignore[misc]
    """The replay table of Ape-X, with serial numbers of items."""

    def table(self) -> TableDeclaration:
        return with_serials(super().table())


class ParameterServer(AccountingServer, ApexParameterServer):  # type: ignore[misc]
    """The parameter server of Ape-X, with counters of updates."""


class Agent(ApexAgent):  # type: ignore[misc]
    """The agent of Ape-X, with parameters and a replay memory that record updates and items."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        self._journal = Journal(Path(config.journals), config.slots)
        super().__init__(config, _accounted(config, context, self._journal))

    def close(self) -> None:
        super().close()
        self._journal.closed()


class Learner(ApexLearner):  # type: ignore[misc]
    """The learner of Ape-X, with parameters and a replay memory that record updates and items."""

    def __init__(self, config: Config, context: LearnerContext) -> None:
        self._journal = Journal(Path(config.journals), config.slots)
        super().__init__(config, _accounted(config, context, self._journal))

    def step(self, sampled: Sampled) -> None:
        self.context.replay.see(sampled)
        super().step(sampled)

    def close(self) -> None:
        super().close()
        self._journal.closed()


def _accounted(config: Config, context: Any, journal: Journal) -> Any:
    layout = ParameterServer(config, context.observation_space, context.action_space).layout()
    return dataclasses.replace(
        context,
        parameters=LedgerParameters(context, layout, journal, config),
        replay=NumberedItems(context.replay, Path(config.items), journal.slot),
    )
