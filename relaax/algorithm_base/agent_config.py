"""The keys of every algorithm whose agent acts by one network, and what they mean for a space of observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, PositiveFloat

from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.network import NetworkConfig, image_part, network_for, network_refusal
from relaax.algorithm_base.normalization import normalized_statistics
from relaax.algorithm_base.observations import image_of, is_image
from relaax.configuration import Fixed
from relaax.nn.specification import NetworkSpec
from relaax.rlx import Space
from relaax.transport.grpc_options import MAX_STATISTICS


class AgentConfig(ConfigBase):
    """What the network is given, what is learned from, and the network itself."""

    rewards_gamma: Fixed[float] = Field(0.99, ge=0, le=1, description="Discount of the reward one step later.")
    reward_clipping: Fixed[PositiveFloat | Literal["auto"] | None] = Field(
        "auto",
        description="Rewards are cut to plus or minus this for learning, after normalisation and never in what is "
        "reported; null leaves them as they are, auto means 1 for images alone and null for all else.",
    )
    normalize_rewards: Fixed[Literal["auto", "scale", "standardize"] | None] = Field(
        "auto",
        description="For learning, never in what is reported: scale divides by the standard deviation of the "
        "discounted return so far, standardize gives (r - mean) / std; null leaves them as they are, auto means null "
        "for images alone and scale for all else.",
    )
    normalize_observations: Fixed[bool] = Field(
        False, description="What of observations is no image is given to the network as (x - mean) / std, within +-10."
    )
    subtract_mean_image: Fixed[bool] = Field(
        False, description="Images are given to the network without the mean of the first 20,000 of all workers."
    )
    history_len: Fixed[int | None] = Field(
        None, ge=1, le=16, description="Frames that are stacked, for images; by default 4, and 1 for images of bool."
    )
    network: Fixed[NetworkConfig] = Field(NetworkConfig(), description="The network.")

    @property
    def recurrent(self) -> bool:
        """Whether the network has an LSTM."""
        return False


Groups = tuple[tuple[str, ...], ...]


def agent_network(
    config: AgentConfig,
    observation_space: Space,
    heads: Mapping[str, int],
    groups: Groups,
    streams: bool = False,
) -> NetworkSpec:
    """Specify the network with these heads (see `network_for`)."""
    return network_for(config.network, observation_space, heads, config.history_len, config.recurrent, groups, streams)


def agent_statistics(config: AgentConfig, observation_space: Space) -> dict[str, int]:
    """Return names and lengths of the statistics that observations and rewards are normalised with."""
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
    observation_space: Space,
    heads: Mapping[str, int],
    groups: Groups,
    streams: bool = False,
) -> str | None:
    """Say why the algorithm of this name cannot handle the observation space; None if it can."""
    sentence = network_refusal(
        config.network, observation_space, heads, config.history_len, config.recurrent, groups, streams
    )
    if sentence is None and sum(agent_statistics(config, observation_space).values()) > MAX_STATISTICS:
        image = is_image(image_of(observation_space, image_part(config.network, observation_space)))
        key = "subtract_mean_image" if image and config.subtract_mean_image else "normalize_observations"
        sentence = f"at most {MAX_STATISTICS} numbers are normalised; set algorithm.{key} to false"
    return f"{name} cannot handle the observation space {observation_space}: {sentence}" if sentence else None
