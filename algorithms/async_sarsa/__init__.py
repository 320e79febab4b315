"""One-step Sarsa (Mnih et al. 2016), asynchronous.

Section 4 of the paper, with workers on many machines in place of threads.

The agent is that of async_q with other targets; goals and non-goals are the same. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .._value_based.model import ParameterServer, ValueConfig

if TYPE_CHECKING:
    from .._value_based.agent import Agent


class Config(ValueConfig):
    """Asynchronous one-step Sarsa."""

    name = "async_sarsa"


__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".._value_based.agent"})
