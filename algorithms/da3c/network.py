"""The actor-critic network that a configuration and a pair of spaces describe."""

from __future__ import annotations

from relaax.algorithm_base import Discrete, Space, space_size
from relaax.algorithm_base.observations import input_refusal, input_shape, is_image
from relaax.tf.networks import Convolution, NetworkSpec

from .config import Config

ATARI_CONVOLUTIONS = (Convolution(16, 8, 4), Convolution(32, 4, 2))
"""Mnih et al. 2013, and the feed-forward agent of Mnih et al. 2016."""


def actor_critic(config: Config, observation_space: Space, action_space: Space) -> NetworkSpec:
    """Heads `policy` (logits) and `value` (one number). Raises ValueError where an image is too small."""
    image = is_image(observation_space)
    layers = config.network.convolutions
    convolutions = (
        ATARI_CONVOLUTIONS if layers is None else [Convolution(c.filters, c.kernel, c.stride) for c in layers]
    )
    dense = config.network.dense
    return NetworkSpec(
        inputs=input_shape(observation_space, config.history_len),
        heads={"policy": space_size(action_space), "value": 1},
        dense=tuple(dense if dense is not None else ([256] if image else [64, 64])),
        convolutions=tuple(convolutions) if image else (),
        activation=config.network.activation or ("relu" if image else "tanh"),
        separate=config.network.separate,
    )


def refusal(config: Config, observation_space: Space, action_space: Space) -> str | None:
    """Why da3c cannot handle the spaces, in one sentence; None where it can."""
    if not isinstance(action_space, Discrete):
        return f"da3c cannot handle the action space {action_space}; it handles Discrete"
    sentence = input_refusal(observation_space)
    if sentence:
        return f"da3c cannot handle the observation space {observation_space}: {sentence}"
    try:
        actor_critic(config, observation_space, action_space).layout()
    except ValueError as error:
        return f"da3c cannot handle the observation space {observation_space}: {error}"
    return None


def clipping(config: Config, observation_space: Space) -> float | None:
    """The bound on rewards that `reward_clipping` means for this observation space."""
    if config.reward_clipping == "auto":
        return 1.0 if is_image(observation_space) else None
    return config.reward_clipping
