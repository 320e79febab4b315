"""Distributed A3C for continuous actions (Mnih et al. 2016, section 9): Gaussian policies, normalised observations.

Goals: physical control with any number of actions, from the observations that da3c handles; statistics that all workers
share. Non-goals: discrete actions (`da3c`), replay, policies that are not Gaussian. See README.md.
"""

from .agent import Agent
from .config import Config
from .parameter_server import ParameterServer

__all__ = ["Agent", "Config", "ParameterServer"]
