"""Ape-X whose updates and items are counted (see `replay_soak_parts`)."""

from __future__ import annotations

from .apex import Agent as ApexAgent
from .apex import Config as ApexConfig
from .apex import Learner as ApexLearner
from .apex import ParameterServer as ApexParameterServer
from .apex import Replay as ApexReplay
from .replay_soak_parts import Accounted, AccountedLearner, NumberedTable
from .soak_server import AccountingServer


class Config(ApexConfig):  # type: ignore[misc]  # imported from the folder of algorithms
    """The keys of Ape-X, and the folders of the journals and of the counts of items."""

    journals: str
    items: str
    segments: int = 1  # shards of the parameter server
    slots: int = 2048


class Replay(NumberedTable, ApexReplay):  # type: ignore[misc]
    """The replay table of Ape-X, with serial numbers of items."""


class ParameterServer(AccountingServer, ApexParameterServer):  # type: ignore[misc]
    """The parameter server of Ape-X, with counters of updates."""


class Agent(Accounted, ApexAgent):  # type: ignore[misc]
    """The agent of Ape-X, which counts updates and items."""

    server = ParameterServer


class Learner(AccountedLearner, ApexLearner):  # type: ignore[misc]
    """The learner of Ape-X, which counts updates and items."""

    server = ParameterServer
