"""Ape-X DQN (Horgan et al. 2018): replay memory, many actors.

Many actors fill one prioritised memory, from which learners sample.

Agent, learner and memory are gorila's; goals and non-goals are the same. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .._replay.model import Replay
from .._value_based.model import ParameterServer
from .config import Config

if TYPE_CHECKING:
    from ..gorila.agent import Agent
    from ..gorila.learner import Learner

__all__ = ["Agent", "Config", "Learner", "ParameterServer", "Replay"]
__getattr__ = lazy_exports(__name__, {"Agent": "..gorila.agent", "Learner": "..gorila.learner"})
