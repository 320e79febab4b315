"""Distributed A3C (Mnih et al. 2016): actor-critic, any actions.

The paper's algorithm, with workers on many machines in place of threads.

Goals: Algorithm S3 in code that can be compared with the paper line by line; any actions, discrete, real or mixed, with
action masks; any observation that fits a dense or a convolutional network, with or without an LSTM; N environments per
worker. Non-goals: replay. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .model import Config, ParameterServer

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent"})
