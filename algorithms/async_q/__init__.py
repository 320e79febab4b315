"""One-step Q-learning (Mnih et al. 2016), asynchronous.

Algorithm 1 of the paper, its threads spread over machines.

Goals: the paper's algorithm, readable beside it, and what async_sarsa and n_step_q share with it: one discrete action,
any observation that fits a dense or a convolutional network, double and dueling estimates. Non-goals: replay (`gorila`,
`apex`), continuous actions. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from .config import Config

if TYPE_CHECKING:
    from .agent import Agent
    from .parameter_server import ParameterServer

__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".agent", "ParameterServer": ".parameter_server"})
