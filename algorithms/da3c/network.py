"""The actor-critic network that a configuration, an observation space and a policy describe."""

from __future__ import annotations

from typing import Any

from relaax.algorithm_base import MAX_STATISTICS, Space
from relaax.algorithm_base.network import network_for, network_refusal
from relaax.algorithm_base.normalization import normalized_statistics
from relaax.algorithm_base.observations import is_image
from relaax.nn.distributions import Distribution
from relaax.nn.specification import NetworkSpec

from .config import Config


def actor_critic(config: Config, observation_space: Space, policy: Distribution) -> NetworkSpec:
    """Specify the policy's heads and `value` (one number), on one trunk or on one for each of the two."""
    return network_for(config.network, observation_space, **_heads(config, policy))


def statistics(config: Config, observation_space: Space) -> dict[str, int]:
    """Return names and lengths of the statistics that observations and rewards are normalised with."""
    return normalized_statistics(
        observation_space, config.normalize_observations, config.normalize_rewards, config.subtract_mean_image
    )


def observation_refusal(config: Config, observation_space: Space, policy: Distribution) -> str | None:
    """Say why the observation space cannot be handled; None if it can."""
    sentence = network_refusal(config.network, observation_space, **_heads(config, policy))
    if sentence is None and sum(statistics(config, observation_space).values()) > MAX_STATISTICS:
        key = "subtract_mean_image" if is_image(observation_space) else "normalize_observations"
        return f"at most {MAX_STATISTICS} numbers are normalised; set algorithm.{key} to false"
    return sentence


def _heads(config: Config, policy: Distribution) -> dict[str, Any]:
    return {
        "heads": {**policy.heads, "value": 1},
        "history_len": config.history_len,
        "lstm": config.lstm,
        "groups": (tuple(policy.heads), ("value",)),
    }
