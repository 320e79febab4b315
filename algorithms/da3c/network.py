"""The actor-critic network that a configuration, an observation space and a policy describe."""

from __future__ import annotations

from relaax.algorithm_base import Space
from relaax.algorithm_base.network import agent_network, observation_refusal
from relaax.nn.distributions import Distribution
from relaax.nn.specification import NetworkSpec

from .config import Config


def actor_critic(config: Config, observation_space: Space, policy: Distribution) -> NetworkSpec:
    """Specify the policy's heads and `value` (one number), on one trunk or on one for each of the two."""
    return agent_network(config, observation_space, _heads(policy), _groups(policy))


def actor_critic_refusal(name: str, config: Config, observation_space: Space, policy: Distribution) -> str | None:
    """Say why the algorithm of this name cannot handle the observation space; None if it can."""
    return observation_refusal(name, config, observation_space, _heads(policy), _groups(policy))


def _heads(policy: Distribution) -> dict[str, int]:
    return {**policy.heads, "value": 1}


def _groups(policy: Distribution) -> tuple[tuple[str, ...], ...]:
    return tuple(policy.heads), ("value",)
