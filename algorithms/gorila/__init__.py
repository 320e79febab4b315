"""Gorila (Nair et al. 2015): deep Q-learning with replay memory.

Many actors, many learners and one parameter server.

Goals: code that can be compared with the paper line by line, with actor, memory and learner bundled in each worker or
with separate learners; the code that apex shares. Non-goals: recurrent networks, continuous actions. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .._replay.model import Replay
from .._value_based.model import ParameterServer
from .model import Config

if TYPE_CHECKING:
    from .agent import Agent
    from .learner import Learner

__all__ = ["Agent", "Config", "Learner", "ParameterServer", "Replay"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent", "Learner": ".learner"})
