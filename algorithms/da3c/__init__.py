"""Distributed A3C (Mnih et al. 2016): actor-critic, discrete actions.

The paper's algorithm with its threads spread over machines.

Goals: the paper's Algorithm S3 for discrete actions, one or several at a time, readable beside it; any observation that
fits a dense or a convolutional network, with an LSTM or without; N environments per worker. Non-goals: continuous
actions (`da3c_cont`), replay. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .model import Config, ParameterServer

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent"})
