"""Distributed A3C for continuous actions, with an LSTM.

Section 9 of Mnih et al. 2016: Gaussian policies, normalised observations.

Goals: physical control with any number of actions, from the observations that da3c handles; statistics that all workers
share. Non-goals: discrete actions (`da3c`), replay, policies that are not Gaussian. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .model import Config, ParameterServer

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent"})
