"""The value network that a configuration and an observation space describe."""

from __future__ import annotations

from relaax.algorithm_base import Discrete, MultiBinary, MultiDiscrete, Space
from relaax.algorithm_base.network import agent_network, observation_refusal
from relaax.nn.action_values import ActionValues
from relaax.nn.specification import NetworkSpec

from .config import ActionValueConfig


def value_network(config: ActionValueConfig, observation_space: Space, values: ActionValues) -> NetworkSpec:
    """Specify a network whose heads are those of `values`."""
    return agent_network(config, observation_space, values.heads, _groups(values), config.dueling)


def action_values(config: ActionValueConfig, action_space: Space) -> ActionValues:
    """Return what the network's heads mean. The space is `Discrete`: any other was refused before."""
    assert isinstance(action_space, Discrete)
    return ActionValues(action_space.n, config.dueling)


def refusal(name: str, config: ActionValueConfig, observation_space: Space, action_space: Space) -> str | None:
    """Say why the algorithm of this name cannot handle the spaces; None if it can."""
    if not isinstance(action_space, Discrete):
        several = isinstance(action_space, MultiDiscrete | MultiBinary)
        return (
            f"{name} cannot handle the action space {action_space}: it handles one Discrete, of which the network "
            "estimates a value for each action" + ("; da3c handles MultiDiscrete and MultiBinary" if several else "")
        )
    values = action_values(config, action_space)
    return observation_refusal(name, config, observation_space, values.heads, _groups(values), config.dueling)


def _groups(values: ActionValues) -> tuple[tuple[str, ...], ...]:
    return tuple((head,) for head in values.heads)
