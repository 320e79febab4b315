"""The value network that a configuration and an observation space describe."""

from __future__ import annotations

from typing import Any

from relaax.algorithm_base import MAX_STATISTICS, Discrete, Space
from relaax.algorithm_base.network import network_for, network_refusal
from relaax.algorithm_base.normalization import normalized_statistics
from relaax.algorithm_base.observations import is_image
from relaax.nn.action_values import ActionValues
from relaax.nn.specification import NetworkSpec

from .config import ValueConfig


def value_network(config: ValueConfig, observation_space: Space, values: ActionValues) -> NetworkSpec:
    """Specify a network whose heads are those of `values`."""
    return network_for(config.network, observation_space, **_heads(config, values))


def action_values(config: ValueConfig, action_space: Space) -> ActionValues:
    """Return what the network's heads mean. The space is `Discrete`: any other was refused before."""
    assert isinstance(action_space, Discrete)
    return ActionValues(action_space.n, config.dueling)


def statistics(config: ValueConfig, observation_space: Space) -> dict[str, int]:
    """Return names and lengths of the statistics that observations and rewards are normalised with."""
    return normalized_statistics(
        observation_space, config.normalize_observations, config.normalize_rewards, config.subtract_mean_image
    )


def refusal(name: str, config: ValueConfig, observation_space: Space, action_space: Space) -> str | None:
    """Say why the algorithm of this name cannot handle the spaces; None if it can."""
    if not isinstance(action_space, Discrete):
        return (
            f"{name} cannot handle the action space {action_space}: it handles one Discrete, of which the network "
            "estimates a value for each action"
        )
    values = action_values(config, action_space)
    sentence = network_refusal(config.network, observation_space, **_heads(config, values))
    if sentence is None and sum(statistics(config, observation_space).values()) > MAX_STATISTICS:
        key = "subtract_mean_image" if is_image(observation_space) else "normalize_observations"
        sentence = f"at most {MAX_STATISTICS} numbers are normalised; set algorithm.{key} to false"
    return f"{name} cannot handle the observation space {observation_space}: {sentence}" if sentence else None


def _heads(config: ValueConfig, values: ActionValues) -> dict[str, Any]:
    return {
        "heads": values.heads,
        "history_len": config.history_len,
        "lstm": config.recurrent,
        "groups": tuple((head,) for head in values.heads),
        "streams": config.dueling,
    }
