"""Distributed A3C for continuous actions, with an LSTM.

Section 9 of Mnih et al. 2016: Gaussian policies, normalised observations.

The agent is da3c's; the defaults are for physical control. Goals and non-goals are the same. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from ..da3c.model import ParameterServer
from .config import Config

if TYPE_CHECKING:
    from ..da3c.agent import Agent

__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": "..da3c.agent"})
