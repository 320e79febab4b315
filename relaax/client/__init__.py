"""The client library of RELAAX: it connects environments to the agents of an RLX server.

It needs only numpy and Protobuf. Begin with `connection.client` (the clients) and
`program.loop` (`run`).
"""

from relaax.client.connection.client import Client
from relaax.client.connection.failure import EnvironmentExit, EnvironmentFault, Failure, TrainingFinished
from relaax.client.connection.vector_client import VectorClient
from relaax.client.program.checked_env import CheckedEnv
from relaax.client.program.loop import run
from relaax.client.program.summary import RunSummary
from relaax.client.program.worlds import Worlds
from relaax.rlx import Box, Dict, Discrete, Episode, MultiBinary, MultiDiscrete, Tuple

__all__ = [
    "Box",
    "CheckedEnv",
    "Client",
    "Dict",
    "Discrete",
    "EnvironmentExit",
    "EnvironmentFault",
    "Episode",
    "Failure",
    "MultiBinary",
    "MultiDiscrete",
    "RunSummary",
    "TrainingFinished",
    "Tuple",
    "VectorClient",
    "Worlds",
    "run",
]
