"""The keys that every algorithm's configuration has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from relaax.configuration import Section
from relaax.rlx import Discrete, Space

if TYPE_CHECKING:
    from relaax.tf.optimizers import OptimizerSpec


AtLeastOne = Annotated[int, Field(ge=1)]


class RMSPropConfig(Section):
    """Shared RMSProp (Mnih et al. 2016): g <- decay g + (1 - decay) d^2, theta <- theta - rate d / sqrt(g + eps)."""

    decay: float = Field(0.99, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(0.1, gt=0, description="Added to that mean inside the square root.")
    gradient_norm_clipping: float | None = Field(
        40.0, gt=0, description="Longer gradients are scaled down to this norm; null leaves them as they are."
    )


class AdamConfig(Section):
    """Adam (Kingma and Ba 2015, the form at the end of section 2), its moments shared by all workers."""

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of that mean.")
    gradient_norm_clipping: float | None = Field(
        40.0, gt=0, description="Longer gradients are scaled down to this norm; null leaves them as they are."
    )


class ConfigBase(Section):
    """What every algorithm's `Config` begins with; a subclass adds keys of its own."""

    path: str = Field(description="Where the algorithm is: a path, or the name of a bundled one.")
    state_size: AtLeastOne | list[AtLeastOne] | None = Field(
        None, description="Shape of an observation; optional, checked against the client's space."
    )
    action_size: int | None = Field(
        None, ge=1, description="Number of discrete actions, or length of a continuous one; optional, checked likewise."
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Fixes initial parameters and each actor's random numbers.")
    max_global_step: int = Field(
        100_000_000, ge=1, description="Environment steps, over all workers, after which training ends."
    )
    initial_learning_rate: float = Field(7e-4, gt=0, description="Learning rate at global step 0.")
    anneal_learning_rate: bool = Field(
        True, description="Bring the learning rate down to zero at max_global_step, linearly."
    )
    max_staleness: int | None = Field(
        None, ge=0, description="Gradients computed on parameters older than this many versions are discarded."
    )
    sync_interval: int = Field(1, ge=1, description="Pushes between two fetches of parameters: 1 fetches after each.")
    gpu: bool = Field(False, description="Short form of relaax-rlx-server.device: gpu.")
    optimizer: Literal["rms_prop", "adam"] = Field("rms_prop", description="Which of the next two sections is used.")
    rms_prop: RMSPropConfig = Field(RMSPropConfig(), alias="RMSProp", description="Shared RMSProp.")
    adam: AdamConfig = Field(AdamConfig(), alias="Adam", description="Adam.")

    @property
    def gradient_norm_clipping(self) -> float | None:
        """That of the optimizer in use."""
        return self.adam.gradient_norm_clipping if self.optimizer == "adam" else self.rms_prop.gradient_norm_clipping

    @model_validator(mode="after")
    def _own_gradients_are_not_too_stale(self) -> ConfigBase:
        if self.max_staleness is not None and self.max_staleness < self.sync_interval - 1:
            raise ValueError(
                f"with sync_interval {self.sync_interval} a worker's own gradients are up to {self.sync_interval - 1} "
                f"versions old, and max_staleness {self.max_staleness} would discard them; raise it, or fetch more "
                "often"
            )
        return self

    def optimizer_spec(self) -> OptimizerSpec:
        """The optimizer that this configuration describes."""
        from relaax.tf.optimizers import Adam, RMSProp

        if self.optimizer == "adam":
            return Adam(beta1=self.adam.beta1, beta2=self.adam.beta2, epsilon=self.adam.epsilon)
        return RMSProp(decay=self.rms_prop.decay, epsilon=self.rms_prop.epsilon)

    def model_description(self) -> dict[str, Any]:
        """What must agree between a worker and the parameter server: every key but where things are and run."""
        return self.model_dump(mode="json", by_alias=True, exclude={"path", "seed", "gpu"})


def size_mismatch(config: ConfigBase, observation_space: Space, action_space: Space) -> str | None:
    """The sentence that refuses spaces which are not those of `state_size` and `action_size`; None where they are."""
    if config.state_size is not None:
        wanted = [config.state_size] if isinstance(config.state_size, int) else list(config.state_size)
        shapes = [list(element.shape) for element in observation_space.elements()]
        if shapes != [wanted]:
            return f"algorithm.state_size is {config.state_size}, the client's observation space is {observation_space}"
    if config.action_size is not None and config.action_size != space_size(action_space):
        return f"algorithm.action_size is {config.action_size}, the client's action space is {action_space}"
    return None


def space_size(space: Space) -> int:
    """How many choices a Discrete space has, or how many numbers a value of another space holds."""
    if isinstance(space, Discrete):
        return space.n
    return sum(math.prod(element.shape) for element in space.elements())
