"""Ape-X DPG (Horgan et al. 2018): real actions, many actors.

Many actors fill one prioritised replay memory, from which learners sample.

Goals: the second half of the paper, in code that can be compared with it line by line; many actors. Non-goals: discrete
actions, recurrent networks. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .._continuous.model import ContinuousParameterServer as ParameterServer
from .._replay.model import Replay
from .config import Config

if TYPE_CHECKING:
    from .agent import Agent
    from .learner import Learner

__all__ = ["Agent", "Config", "Learner", "ParameterServer", "Replay"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent", "Learner": ".learner"})
