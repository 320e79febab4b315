"""Configuration keys of algorithms with one network, the network for an observation space, and refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from relaax.algorithm_base.acting.masks import mask_refusal, without_mask
from relaax.algorithm_base.config import ConfigBase, space_size
from relaax.configuration import Fixed, Free, Section
from relaax.nn.distributions import Distribution
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.rlx import Box, Discrete, MultiDiscrete, Space
from relaax.rlx.action_masks import ACTION_MASK
from relaax.transport.grpc_options import MAX_PARAMETERS, MAX_STATISTICS

Layers = tuple[tuple[int, tuple[Convolution, ...], int], ...]
"""Triples: minimum pixels of an image's shorter side, the default convolutions, the width of the dense layer."""
LAYERS: Layers = (
    (36, (Convolution(16, 8, 4), Convolution(32, 4, 2)), 256),
    (16, (Convolution(16, 4, 2), Convolution(32, 3, 1)), 256),
    (3, (Convolution(16, 3, 1),), 128),
    (0, (), 128),
)
"""Default layers of `NetworkConfig`. Entry 0 is from Mnih et al. 2013 and the feed-forward agent of Mnih et al. 2016,
for 84 x 84. Entry 2 is from Young and Tian 2019 (MinAtar), for 10 x 10.
"""
SIDE_INPUT_WIDTH = 64
"""Width of the dense layer for the numbers of an observation with an image."""
_NATURE = (36, (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)), 512)

IMAGE_SIDE = 16
"""An array looks like an image if at least two of its axes have at least this length."""


class ConvolutionConfig(Section):
    """One convolution without padding."""

    filters: int = Field(gt=0, description="Number of filters.")
    kernel: int = Field(gt=0, description="Side of a filter, in pixels.")
    stride: int = Field(gt=0, description="Pixels between two applications.")


class NetworkConfig(Section):
    """The network. Defaults of missing keys depend on the observation: an image or a vector."""

    layers: ClassVar[Layers] = LAYERS

    convolutions: list[ConvolutionConfig] | None = Field(
        None,
        description="Layers for images. Default: 16 filters 8x8 stride 4, 32 of 4x4 stride 2. Sides below "
        "36 pixels: 16 of 4x4 stride 2, 32 of 3x3; below 16: 16 of 3x3.",
    )
    dense: list[PositiveInt] | None = Field(
        None,
        description="Widths of dense layers. Default: [256] for images, [128] with a side below 16 "
        "pixels, [64, 64] for vectors.",
    )
    activation: Literal["relu", "tanh"] | None = Field(
        None, description="Activation between layers. Default: relu for images, tanh for vectors."
    )
    separate: bool | None = Field(
        None,
        description="Separate networks for policy and value, or for value and advantages (`dueling`). "
        "Default: true for vectors without `lstm`.",
    )
    flatten_images: bool = Field(
        False,
        description="Flatten images and arrays with two axes of at least 16 to numbers. false: refuse such "
        "arrays, except one image.",
    )
    lstm_size: int = Field(256, gt=0, description="Cells of the LSTM after these layers, with `lstm`.")


class NatureNetworkConfig(NetworkConfig):
    """The network, for images that of Mnih et al. 2015. Defaults of missing keys depend on the observation."""

    layers: ClassVar[Layers] = (_NATURE, *LAYERS[1:])

    convolutions: list[ConvolutionConfig] | None = Field(
        None,
        description="Layers for images. Default: 32 filters 8x8 stride 4, 64 of 4x4 stride 2, 64 of 3x3 "
        "(Mnih et al. 2015); below 36 pixels as for da3c.",
    )
    dense: list[PositiveInt] | None = Field(
        None,
        description="Widths of dense layers. Default: [512] for images, [256] with a side below 36 "
        "pixels, [128] below 16, [64, 64] for vectors.",
    )


def network_for(
    config: NetworkConfig,
    observation_space: Space,
    heads: Mapping[str, int],
    history_len: int | None,
    lstm: bool = False,
    groups: tuple[tuple[str, ...], ...] = (),
    streams: bool = False,
) -> NetworkSpec:
    """Return the network for a configuration and an observation space.

    `heads`: names and widths of the outputs. `groups`: groups of heads that have separate networks if `separate` is
    true. `history_len`: number of stacked frames of an image, None for the default. `lstm`: whether to add an LSTM.
    `streams`: heads that share convolutions have separate parts of the last dense layer (see `NetworkSpec`). It has no
    effect without convolutions or a dense layer, with an LSTM, or with separate networks.
    """
    part = image_part(config, observation_space)
    image_space = image_of(observation_space, part)
    image = is_image(image_space)
    convolutions, dense = _default_layers(config, image_space)
    if image and config.convolutions is not None:
        convolutions = tuple(Convolution(c.filters, c.kernel, c.stride) for c in config.convolutions)
    if config.dense is not None:
        dense = tuple(config.dense)
    separate = config.separate
    if separate is None:
        separate = not image and not lstm
    separate_groups = groups if separate else ()
    frames = history(history_len, image_space)
    inputs = input_shape(observation_space, frames, part)
    stack = () if part is None else input_shape(image_space, frames)
    return NetworkSpec(
        inputs=inputs,
        heads=dict(heads),
        dense=dense,
        convolutions=convolutions,
        activation=config.activation or ("relu" if image else "tanh"),
        groups=separate_groups,
        lstm=config.lstm_size if lstm else 0,
        streams=bool(streams and convolutions and dense) and not lstm and not separate_groups,
        image=stack,
        side_width=SIDE_INPUT_WIDTH if stack and inputs != (math.prod(stack),) else 0,
    )


def is_image(space: Space) -> bool:
    """Return whether the space is one Box of pixels: of uint8, or of bool if it has channels."""
    if not isinstance(space, Box):
        return False
    axes = {np.dtype(np.uint8): (2, 3), np.dtype(np.bool_): (3,)}
    return len(space.shape) in axes.get(space.dtype, ())


def looks_like_image(element: Space) -> bool:
    """Return whether an elementary part has the shape of an image, with any dtype and any position of the channels."""
    return isinstance(element, Box) and sum(side >= IMAGE_SIDE for side in element.shape) > 1


def with_channels_last(space: Space) -> tuple[int, int, int] | None:
    """Return the shape [H, W, C] for an image that looks like [C, H, W]; None for other spaces."""
    (element,) = space.elements() if is_image(space) else (None,)
    if element is None or len(element.shape) != 3:
        return None
    channels, height, width = element.shape
    return (height, width, channels) if 2 * channels <= min(height, width) else None


def input_shape(space: Space, history: int, image: int | None = None) -> tuple[int, ...]:
    """Return the shape of one network input. `image`: as for `ObservationEncoder`."""
    if is_image(space):
        (element,) = space.elements()
        height, width, *channels = element.shape
        return height, width, math.prod(channels) * history
    sizes = [sum(one_hot_sizes(e)) or math.prod(e.shape) for e in space.elements()]
    if image is not None:
        sizes[image] *= history
    return (sum(sizes),)


def one_hot_sizes(element: Space) -> tuple[int, ...]:
    """Return the length of each one-hot vector that represents a Discrete or MultiDiscrete; empty for other spaces."""
    if isinstance(element, Discrete):
        return (element.n,)
    return element.nvec if isinstance(element, MultiDiscrete) else ()


def image_of(space: Space, image: int | None) -> Space:
    """Return the part with index `image`, or the whole space if `image` is None."""
    return space if image is None else list(space.elements())[image]


def input_refusal(space: Space) -> str | None:
    """Return a sentence that refuses the space; None if `ObservationEncoder` supports it."""
    for element in space.elements():
        if (needed := sum(one_hot_sizes(element))) > 10_000:
            return f"observations in {element} would need {needed} inputs; at most 10000 are supported"
    return None


def image_part(config: NetworkConfig, observation_space: Space) -> int | None:
    """Return the index of the part of a Tuple or Dict that gets convolutions; None if no part does.

    If exactly one part is an image and looks like one, it is that part. Smaller images are flattened to numbers, unless
    convolutions are configured.
    """
    elements = list(observation_space.elements())
    if config.flatten_images or elements[0] is observation_space:
        return None
    images = [index for index, element in enumerate(elements) if is_image(element)]
    large = [index for index in images if looks_like_image(elements[index])]
    found = large or (images if config.convolutions else [])
    return found[0] if len(found) == 1 else None


def history(history_len: int | None, observation_space: Space) -> int:
    """Return the number of stacked frames for this observation space. `history_len`: None for the default.

    The default for images of bool is 1: their channels usually contain the motion already, as in MinAtar.
    """
    if history_len is not None:
        return history_len
    return 1 if is_image(observation_space) and next(observation_space.elements()).dtype == np.bool_ else 4


def _default_layers(config: NetworkConfig, observation_space: Space) -> tuple[tuple[Convolution, ...], tuple[int, ...]]:
    """Return the default convolutions and widths of dense layers."""
    if not is_image(observation_space):
        return (), (64, 64)
    height, width, _ = input_shape(observation_space, history=1)
    return next((convolutions, (dense,)) for side, convolutions, dense in config.layers if min(height, width) >= side)


def network_refusal(
    config: NetworkConfig,
    observation_space: Space,
    heads: Mapping[str, int],
    history_len: int | None,
    lstm: bool = False,
    groups: tuple[tuple[str, ...], ...] = (),
    streams: bool = False,
) -> str | None:
    """Return why `network_for` does not support an observation space; None if it does."""
    sentence = input_refusal(observation_space) or _image_refusal(config, observation_space)
    if sentence:
        return sentence
    try:
        parameters = network_for(config, observation_space, heads, history_len, lstm, groups, streams).layout().size
    except ValueError as error:
        transposed = with_channels_last(image_of(observation_space, image_part(config, observation_space)))
        hint = "change algorithm.network.convolutions"
        return f"{error}; {hint if transposed is None else f'transpose it to {list(transposed)}, or {hint}'}"
    if parameters > MAX_PARAMETERS:
        return (
            f"the network would have {parameters} parameters, outputs included; at most {MAX_PARAMETERS} are supported"
        )
    return None


def _image_refusal(config: NetworkConfig, observation_space: Space) -> str | None:
    """Return a sentence that refuses images other than bytes [H, W, C]: agents learn badly from them."""
    part = image_part(config, observation_space)
    image = image_of(observation_space, part)
    transposed = with_channels_last(image)
    if transposed is not None and config.convolutions is None:
        return (
            f"{_part_text(image, observation_space)} looks like an image of [channels, rows, columns], and images must "
            f"be [rows, columns, channels]; transpose it to {list(transposed)}, for instance with "
            "gymnasium.wrappers.TransformObservation, or set algorithm.network.convolutions if its axes are already "
            "[rows, columns, channels]"
        )
    if config.flatten_images or is_image(observation_space):
        return None
    others = [e for index, e in enumerate(observation_space.elements()) if index != part and looks_like_image(e)]
    images = [element for element in others if is_image(element)]
    if len(images) > 1:
        numbers = sum(map(space_size, images))
        return (
            f"{len(images)} of its parts are images, the first two {images[0]} and {images[1]}, and convolutions "
            f"support one; send them as the channels of one image, or set {_flatten_hint('their', numbers)}"
        )
    if others:
        return (
            f"{_part_text(others[0], observation_space)} looks like an image, and convolutions support Boxes of uint8, "
            "[rows, columns] or [rows, columns, channels]; send such a Box, or set "
            f"{_flatten_hint('its', space_size(others[0]))}"
        )
    return None


def _part_text(element: Space, observation_space: Space) -> str:
    return "it" if element is observation_space else f"its part {element}"


def _flatten_hint(whose: str, numbers: int) -> str:
    return f"algorithm.network.flatten_images to true to use {whose} {numbers} numbers without convolutions"


class AgentConfig(ConfigBase):
    """The keys of the network, its inputs, and the rewards to learn from."""

    rewards_gamma: Fixed[float] = Field(0.99, ge=0, le=1, description="Discount of the reward one step later.")
    reward_clipping: Fixed[PositiveFloat | Literal["auto"] | None] = Field(
        "auto",
        description="Bound of normalised rewards for learning, plus and minus. auto: 1 if the observation "
        "is one image, else null.",
    )
    normalize_rewards: Fixed[Literal["auto", "scale", "standardize"] | None] = Field(
        "auto",
        description="Normalise rewards for learning. scale: divide by the discounted return's standard "
        "deviation. standardize: (r - mean) / std. auto: null if the observation is one "
        "image, else scale.",
    )
    normalize_observations: Fixed[bool] = Field(
        False, description="Normalise observations except images: (x - mean) / std, clipped to +-10."
    )
    subtract_mean_image: Fixed[bool] = Field(
        False, description="Subtract the mean of the first 20,000 images from each image."
    )
    history_len: Fixed[int | None] = Field(
        None, ge=1, le=16, description="Stacked frames of an image. Default: 4, and 1 for images of bool."
    )
    network: Fixed[NetworkConfig] = Field(NetworkConfig(), description="The network.")
    action_mask: Fixed[str | None] = Field(
        ACTION_MASK,
        min_length=1,
        description="Key of the observation's part, in a Dict, that marks the valid actions: one element for each, "
        "nonzero if it is valid. null: no part is a mask.",
    )

    @property
    def recurrent(self) -> bool:
        """Whether the network has an LSTM: the value of the key `lstm`, False without such a key."""
        return bool(getattr(self, "lstm", False))


Groups = tuple[tuple[str, ...], ...]


def agent_network(
    config: AgentConfig,
    observation_space: Space,
    heads: Mapping[str, int],
    groups: Groups,
    streams: bool = False,
) -> NetworkSpec:
    """Return the network with these heads (see `network_for`). The action mask is no input of it."""
    observation_space = without_mask(config.action_mask, observation_space)
    return network_for(config.network, observation_space, heads, config.history_len, config.recurrent, groups, streams)


OBSERVATION, REWARD, RETURN, IMAGE = "observation", "reward", "return", "image"
"""Names of the statistics."""


def normalized_statistics(
    observation_space: Space,
    observations: bool,
    rewards: Literal["auto", "scale", "standardize"] | None,
    mean_image: bool = False,
    image: int | None = None,
) -> dict[str, int]:
    """Return the names and lengths of the statistics for normalisation (see `ParameterServerBase.statistics`).

    The arguments are the values of `normalize_observations`, `normalize_rewards` and `subtract_mean_image` in
    `AgentConfig`. `image`: as for `ObservationEncoder`.
    """
    statistics = {}
    image_space = image_of(observation_space, image)
    pixels = math.prod(input_shape(image_space, history=1)) if is_image(image_space) else 0
    if mean_image and pixels:
        statistics[IMAGE] = pixels
    numbers = math.prod(input_shape(observation_space, history=1)) - pixels
    if observations and numbers:
        statistics[OBSERVATION] = numbers
    if rewards == "auto":
        rewards = None if is_image(observation_space) else "scale"
    if rewards is not None:
        statistics[RETURN if rewards == "scale" else REWARD] = 1
    return statistics


def reward_bound(clipping: float | Literal["auto"] | None, observation_space: Space) -> float | None:
    """Return the bound for a value of `reward_clipping`. "auto" gives 1 if the observation is one image, else None."""
    if clipping == "auto":
        return 1.0 if is_image(observation_space) else None
    return clipping


def agent_statistics(config: AgentConfig, observation_space: Space) -> dict[str, int]:
    """Return the names and lengths of the statistics that normalise observations and rewards."""
    observation_space = without_mask(config.action_mask, observation_space)
    return normalized_statistics(
        observation_space,
        config.normalize_observations,
        config.normalize_rewards,
        config.subtract_mean_image,
        image_part(config.network, observation_space),
    )


def observation_refusal(
    name: str,
    config: AgentConfig,
    spaces: tuple[Space, Space],
    heads: Mapping[str, int],
    groups: Groups,
    streams: bool = False,
) -> str | None:
    """Return why the algorithm `name` cannot handle the observation space; None if it can.

    `spaces`: of observations and of actions, which an action mask must fit.
    """
    observation_space, action_space = spaces
    sentence = mask_refusal(config.action_mask, observation_space, action_space)
    if sentence is not None:
        return f"{name} cannot handle the observation space {observation_space}: {sentence}"
    inputs = without_mask(config.action_mask, observation_space)
    sentence = network_refusal(config.network, inputs, heads, config.history_len, config.recurrent, groups, streams)
    if sentence is None and sum(agent_statistics(config, observation_space).values()) > MAX_STATISTICS:
        image = is_image(image_of(inputs, image_part(config.network, inputs)))
        key = "subtract_mean_image" if image and config.subtract_mean_image else "normalize_observations"
        sentence = f"at most {MAX_STATISTICS} numbers are normalised; set algorithm.{key} to false"
    return f"{name} cannot handle the observation space {observation_space}: {sentence}" if sentence else None


class ActorCriticConfig(AgentConfig):
    """The keys of an actor-critic."""

    episode_len: Free[int] = Field(5, ge=1, description="Steps of a rollout, t_max of the paper.")
    gae_lambda: Free[float] = Field(
        1.0,
        ge=0,
        le=1,
        description="Lambda of generalized advantage estimation; 1: n-step returns, as in the paper.",
    )
    entropy_beta: Free[float] = Field(0.01, ge=0, description="Weight of the policy's entropy.")
    relative_entropy: Free[bool] = Field(
        False,
        description="Divide `entropy_beta` by the entropy's maximum, ln N for N actions, so that one value suits games "
        "with few and with many actions.",
    )
    entropy_weights: Free[dict[str, NonNegativeFloat]] = Field(
        {},
        description="Factors of `entropy_beta` for parts of a Tuple or Dict of actions, by path, such as aim or "
        "arms/0, with their inner parts. Default of each: 1.",
    )
    value_loss_weight: Free[float] = Field(0.5, gt=0, description="Weight of the squared error of the value.")
    cloning_weight: Free[float] = Field(
        0.0, ge=0, description="Weight of the log-likelihood of actions that clients chose; 0: learn their value only."
    )
    overlap: Free[bool] = Field(
        True,
        description="Learn while the environments step. false: learn before sending the actions, in the paper's order.",
    )
    greedy_exploit: Free[bool] = Field(
        True, description="In exploit mode, take the most probable action; false: sample the policy."
    )
    lstm: Fixed[bool] = Field(False, description="Add an LSTM layer of network.lstm_size cells.")
    sync: Free[Literal["none", "all"]] = Field(
        "none",
        description="all: each update is the mean of the gradients of all workers, weighted by their environments. "
        "none: each gradient is an update.",
    )
    sync_patience: Free[float] = Field(
        30.0,
        gt=0,
        description="Seconds that an update of `sync` all waits for other workers after its first gradient.",
    )

    @property
    def update_patience(self) -> float | None:
        return self.sync_patience if self.sync == "all" else None

    @model_validator(mode="after")
    def _check_sync(self) -> ActorCriticConfig:
        if self.sync == "none":
            return self
        refused = None
        if self.combine != "fifo":
            refused = f"all gradients are of the current version, and combine {self.combine} corrects older ones; set "
            refused += "combine to fifo"
        elif self.optimizer.startswith("worker_"):
            refused = f"with optimizer {self.optimizer} workers send updates, whose mean is not the update of the mean "
            refused += f"gradient; set optimizer to {self.optimizer.removeprefix('worker_')}"
        elif self.sync_interval > 1:
            refused = "a worker needs the parameters of each update; set sync_interval to 1"
        if refused:
            raise ValueError(f"sync all: {refused}, or set sync to none")
        return self


def actor_critic_network(config: AgentConfig, observation_space: Space, policy: Distribution) -> NetworkSpec:
    """Return the network with the policy's heads and `value` (one number), on one trunk or on separate trunks."""
    return agent_network(config, observation_space, {**policy.heads, "value": 1}, (tuple(policy.heads), ("value",)))


def actor_critic_refusal(
    name: str, config: AgentConfig, spaces: tuple[Space, Space], policy: Distribution
) -> str | None:
    """Return why `actor_critic_network` does not support the spaces of observations and actions; None if it does."""
    groups = (tuple(policy.heads), ("value",))
    return observation_refusal(name, config, spaces, {**policy.heads, "value": 1}, groups)
