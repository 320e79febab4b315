"""The actor-critic network that a configuration, an observation space and a policy describe."""

from __future__ import annotations

from relaax.algorithm_base import MAX_PARAMETERS, MAX_STATISTICS, Space
from relaax.algorithm_base.observations import input_refusal, input_shape, is_image
from relaax.tf.networks import Convolution, NetworkSpec
from relaax.tf.policies import Policy

from .config import Config
from .normalization import declared

ATARI_CONVOLUTIONS = (Convolution(16, 8, 4), Convolution(32, 4, 2))
"""Mnih et al. 2013, and the feed-forward agent of Mnih et al. 2016."""


def actor_critic(config: Config, observation_space: Space, policy: Policy) -> NetworkSpec:
    """The policy's heads and `value` (one number), on one trunk or on one for each of the two."""
    image = is_image(observation_space)
    layers = config.network.convolutions
    convolutions = (
        ATARI_CONVOLUTIONS if layers is None else [Convolution(c.filters, c.kernel, c.stride) for c in layers]
    )
    dense = config.network.dense
    return NetworkSpec(
        inputs=input_shape(observation_space, config.history_len),
        heads={**policy.heads, "value": 1},
        dense=tuple(dense if dense is not None else ([256] if image else [64, 64])),
        convolutions=tuple(convolutions) if image else (),
        activation=config.network.activation or ("relu" if image else "tanh"),
        groups=(tuple(policy.heads), ("value",)) if config.network.separate else (),
        lstm=config.network.lstm_size if config.lstm else 0,
    )


def observation_refusal(config: Config, observation_space: Space, policy: Policy) -> str | None:
    """Why the observation space cannot be handled; None where it can."""
    sentence = input_refusal(observation_space)
    if sentence:
        return sentence
    try:
        parameters = actor_critic(config, observation_space, policy).layout().size
    except ValueError as error:
        return str(error)
    if parameters > MAX_PARAMETERS:
        return f"the network would have {parameters} parameters, outputs included; at most {MAX_PARAMETERS} are handled"
    if sum(declared(config, observation_space).values()) > MAX_STATISTICS:
        return f"at most {MAX_STATISTICS} numbers are normalised; set algorithm.normalize_observations to false"
    return None


def clipping(config: Config, observation_space: Space) -> float | None:
    """The bound on rewards that `reward_clipping` means for this observation space."""
    if config.reward_clipping == "auto":
        return 1.0 if is_image(observation_space) else None
    return config.reward_clipping
