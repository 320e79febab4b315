"""Distributed PPO (Schulman et al. 2017): actor-critic, any actions.

Workers push the gradient of every minibatch, as in Heess et al. 2017, without waiting for each other.

Goals: the clipped objective against the policy that acted, so that stale gradients are bounded; all spaces, networks
and environments that da3c supports. Non-goals: the adaptive KL penalty, replay. See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relaax.algorithm_base import lazy_exports

from ..da3c.model import ParameterServer
from .config import Config

if TYPE_CHECKING:
    from .clipped_agent import Agent

__all__ = ["Agent", "Config", "ParameterServer"]
__getattr__ = lazy_exports(__name__, {"Agent": ".clipped_agent"})
