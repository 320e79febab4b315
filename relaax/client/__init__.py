"""The client of RELAAX: an environment's way to the agent that controls it.

It needs numpy and Protobuf, and nothing of the server's.
"""

from relaax.client.checked_env import CheckedEnv
from relaax.client.client import Client
from relaax.client.failure import EnvironmentExit, EnvironmentFault, Failure, TrainingFinished
from relaax.client.loop import run
from relaax.client.run_summary import RunSummary
from relaax.client.vector_client import VectorClient
from relaax.client.worlds import Worlds
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
