"""The actor-critic network that a configuration, an observation space and a policy describe."""

from __future__ import annotations

import numpy as np

from relaax.algorithm_base import MAX_PARAMETERS, MAX_STATISTICS, Space, space_size
from relaax.algorithm_base.observations import (
    input_refusal,
    input_shape,
    is_image,
    looks_like_image,
    with_channels_last,
)
from relaax.nn.distributions import Distribution
from relaax.nn.specification import Convolution, NetworkSpec

from .config import Config
from .normalization import declared

LAYERS = (
    (36, (Convolution(16, 8, 4), Convolution(32, 4, 2)), 256),
    (16, (Convolution(16, 4, 2), Convolution(32, 3, 1)), 256),
    (3, (Convolution(16, 3, 1),), 128),
    (0, (), 128),
)
"""For images whose shorter side has at least so many pixels: the default convolutions, the width of the dense layer.

The first are those of Mnih et al. 2013 and of the feed-forward agent of Mnih et al. 2016, for 84 x 84. The third are
those of Young and Tian 2019 (MinAtar), for 10 x 10.
"""


def actor_critic(config: Config, observation_space: Space, policy: Distribution) -> NetworkSpec:
    """The policy's heads and `value` (one number), on one trunk or on one for each of the two."""
    image = is_image(observation_space)
    convolutions, dense = _default_layers(observation_space)
    if image and config.network.convolutions is not None:
        convolutions = tuple(Convolution(c.filters, c.kernel, c.stride) for c in config.network.convolutions)
    if config.network.dense is not None:
        dense = tuple(config.network.dense)
    separate = config.network.separate
    if separate is None:
        separate = not image and not config.lstm
    return NetworkSpec(
        inputs=input_shape(observation_space, history(config, observation_space)),
        heads={**policy.heads, "value": 1},
        dense=dense,
        convolutions=convolutions,
        activation=config.network.activation or ("relu" if image else "tanh"),
        groups=(tuple(policy.heads), ("value",)) if separate else (),
        lstm=config.network.lstm_size if config.lstm else 0,
    )


def history(config: Config, observation_space: Space) -> int:
    """Return how many frames `history_len` means for this observation space.

    A frame of bool is a set of planes that an environment has laid out itself (MinAtar's show where things come from),
    so one is enough.
    """
    if config.history_len is not None:
        return config.history_len
    return 1 if is_image(observation_space) and next(observation_space.elements()).dtype == np.bool_ else 4


def _default_layers(observation_space: Space) -> tuple[tuple[Convolution, ...], tuple[int, ...]]:
    """Return the convolutions and the widths of the dense layers."""
    if not is_image(observation_space):
        return (), (64, 64)
    height, width, _ = input_shape(observation_space, history=1)
    return next((convolutions, (dense,)) for side, convolutions, dense in LAYERS if min(height, width) >= side)


def observation_refusal(config: Config, observation_space: Space, policy: Distribution) -> str | None:
    """Why the observation space cannot be handled; None where it can."""
    sentence = input_refusal(observation_space) or _image_refusal(config, observation_space)
    if sentence:
        return sentence
    try:
        parameters = actor_critic(config, observation_space, policy).layout().size
    except ValueError as error:
        turned = with_channels_last(observation_space)
        hint = "change algorithm.network.convolutions"
        return f"{error}; {hint if turned is None else f'transpose it to {list(turned)}, or {hint}'}"
    if parameters > MAX_PARAMETERS:
        return f"the network would have {parameters} parameters, outputs included; at most {MAX_PARAMETERS} are handled"
    if sum(declared(config, observation_space).values()) > MAX_STATISTICS:
        return f"at most {MAX_STATISTICS} numbers are normalised; set algorithm.normalize_observations to false"
    return None


def _image_refusal(config: Config, observation_space: Space) -> str | None:
    """Why an image is not learned from as it is: it would do badly, and nobody would know why."""
    turned = with_channels_last(observation_space)
    if turned is not None and config.network.convolutions is None:
        return (
            "it looks like an image of [channels, rows, columns], and images are taken as [rows, columns, channels]; "
            f"transpose it to {list(turned)}, for instance with gymnasium.wrappers.TransformObservation, or set "
            "algorithm.network.convolutions if its axes are meant as they stand"
        )
    if config.network.flatten_images or is_image(observation_space):
        return None
    for element in observation_space.elements():
        if looks_like_image(element):
            if element is observation_space:
                what, way = "it looks", "Boxes of uint8, [rows, columns] or [rows, columns, channels]; send it as one"
            else:
                what, way = f"its part {element} looks", "an image alone; send nothing else"
            return (
                f"{what} like an image, and convolutions are for {way}, or set algorithm.network.flatten_images to "
                f"true to take its {space_size(element)} numbers side by side, without convolutions"
            )
    return None


def clipping(config: Config, observation_space: Space) -> float | None:
    """The bound on rewards that `reward_clipping` means for this observation space."""
    if config.reward_clipping == "auto":
        return 1.0 if is_image(observation_space) else None
    return config.reward_clipping
