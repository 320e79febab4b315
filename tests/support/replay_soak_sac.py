"""sac whose updates and items are counted (see `replay_soak_parts`)."""

from __future__ import annotations

from .replay_soak_parts import Accounted, AccountedLearner, NumberedTable
from .sac import Agent as SacAgent
from .sac import Config as SacConfig
from .sac import Learner as SacLearner
from .sac import ParameterServer as SacParameterServer
from .sac import Replay as SacReplay
from .soak_server import AccountingServer


class Config(SacConfig):  # type: ignore[misc]  # imported from the folder of algorithms
    """The keys of sac, and the folders of the journals and of the counts of items."""

    journals: str
    items: str
    segments: int = 1  # shards of the parameter server
    slots: int = 2048


class Replay(NumberedTable, SacReplay):  # type: ignore[misc]
    """The replay table of sac, with serial numbers of items."""


class ParameterServer(AccountingServer, SacParameterServer):  # type: ignore[misc]
    """The parameter server of sac, with counters of updates."""


class Agent(Accounted, SacAgent):  # type: ignore[misc]
    """The agent of sac, which counts updates and items."""

    server = ParameterServer


class Learner(AccountedLearner, SacLearner):  # type: ignore[misc]
    """The learner of sac, which counts updates and items."""

    server = ParameterServer
