"""One-step Q-learning (Mnih et al. 2016), asynchronous.

Algorithm 1 of the paper, with workers on many machines in place of threads.

Goals: code that can be compared with the paper line by line; one discrete action, any observation that fits a dense or
a convolutional network, double and dueling estimates. Non-goals: replay (`gorila`, `apex`), continuous actions. See
README.md, and `_value_based` for the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from relaax.algorithm_base import Free, lazy_exports

from .._value_based.model import ParameterServer, ValueConfig

if TYPE_CHECKING:
    from .._value_based.agent import Agent


class Config(ValueConfig):
    """Asynchronous one-step Q-learning."""

    name = "async_q"

    double: Free[bool] = Field(
        False,
        description="Use double Q-learning (van Hasselt et al. 2016).",
    )


__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".._value_based.agent"})
