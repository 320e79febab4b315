"""Soft actor-critic (Haarnoja et al. 2018): real actions.

Actors fill a replay memory, from which learners draw. For slow environments: it needs few steps.

Goals: code that can be compared with the paper line by line; few steps of environments that are slow or expensive;
learners that do not wait for environments. Non-goals: discrete actions, recurrent networks. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .._replay.model import Replay
from .model import Config, ParameterServer

if TYPE_CHECKING:
    from .agent import Agent
    from .learner import Learner

__all__ = ["Agent", "Config", "Learner", "ParameterServer", "Replay"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent", "Learner": ".learner"})
