"""The configuration keys of every algorithm: training, optimizers, learning rate."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from relaax.configuration import Fixed, Free, Section
from relaax.rlx import Discrete, Space

if TYPE_CHECKING:
    from relaax.optim.optimizers import OptimizerSpec


Centered = Annotated[
    bool,
    Field(
        description="Divide by the root of the gradients' variance (Graves 2013).",
    ),
]


class OptimizerConfig(Section):
    """The keys of every optimizer section."""

    gradient_norm_clipping: float | None = Field(40.0, gt=0, description="Maximum norm of a gradient; null: no limit.")

    @abstractmethod
    def spec(self) -> OptimizerSpec:
        """Return the optimizer with these constants."""


class RMSPropConfig(OptimizerConfig):
    """RMSProp (Mnih et al. 2016): g <- decay g + (1 - decay) d^2, theta <- theta - rate d / sqrt(g + epsilon).

    Centered (Graves 2013): m <- decay m + (1 - decay) d, theta <- theta - rate d / sqrt(g - m^2 + epsilon).
    """

    decay: float = Field(0.99, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(1e-5, gt=0, description="Added to the mean of squared gradients, inside the square root.")
    centered: Centered = False

    def spec(self) -> OptimizerSpec:
        from relaax.optim.optimizers import RMSProp

        return RMSProp(decay=self.decay, epsilon=self.epsilon, centered=self.centered)


class AdamConfig(OptimizerConfig):
    """Adam (Kingma and Ba 2015, the form at the end of section 2). All workers share its moments."""

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the mean of squared gradients.")

    def spec(self) -> OptimizerSpec:
        from relaax.optim.optimizers import Adam

        return Adam(beta1=self.beta1, beta2=self.beta2, epsilon=self.epsilon)


class MomentumConfig(OptimizerConfig):
    """Momentum, as Mnih et al. 2016 write it: m <- momentum m + (1 - momentum) d, theta <- theta - rate m."""

    momentum: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients; 0 is plain descent.")

    def spec(self) -> OptimizerSpec:
        from relaax.optim.optimizers import Momentum

        return Momentum(momentum=self.momentum)


class AdaGradConfig(OptimizerConfig):
    """AdaGrad (Duchi et al. 2011): s <- s + d^2, theta <- theta - rate d / (sqrt(s) + epsilon)."""

    epsilon: float = Field(1e-6, gt=0, description="Added to the root of the sum of squared gradients.")

    def spec(self) -> OptimizerSpec:
        from relaax.optim.optimizers import AdaGrad

        return AdaGrad(epsilon=self.epsilon)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate that falls linearly from `initial` at step 0 to zero at `end`; constant if `end` is None."""

    initial: float
    end: int | None = None

    def __call__(self, global_step: int) -> float:
        """Return the learning rate at `global_step`, at least 0."""
        if self.end is None:
            return self.initial
        return self.initial * max(0.0, 1.0 - global_step / self.end)


AtLeastOne = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]

DEFAULT_RING = 16
"""Default of `max_staleness` if delays are compensated."""
MAX_RING = 256
"""Largest `max_staleness` if delays are compensated: a copy of the parameters is kept for each version."""


class ConfigBase(Section):
    """Base class of every algorithm's `Config`. A subclass adds its own keys."""

    path: Free[str] = Field(description="Path of the algorithm, or the name of a bundled one.")
    state_size: Free[AtLeastOne | list[AtLeastOne] | None] = Field(
        None, description="Expected shape of an observation."
    )
    action_size: Free[int | None] = Field(
        None,
        ge=1,
        description="Expected number of discrete actions, or length of a continuous one.",
    )
    seed: Free[int] = Field(0, ge=0, lt=2**31, description="Seed of initial parameters and random numbers.")
    max_global_step: Free[int] = Field(
        100_000_000, ge=1, description="Environment steps, over all workers, after which training ends."
    )
    initial_learning_rate: Free[float] = Field(7e-4, gt=0, description="Learning rate at global step 0.")
    anneal_learning_rate: Free[bool] = Field(
        True, description="Decrease the learning rate linearly to zero at max_global_step."
    )
    max_staleness: Free[int | None] = Field(
        None,
        ge=0,
        description="Discard gradients more than this many versions old; null: no limit, or 16 with delay_compensated.",
    )
    sync_interval: Free[int] = Field(1, ge=1, description="Pushes between two pulls of parameters.")
    gpu: Free[bool] = Field(False, description="Short form of relaax-rlx-server.device: gpu.")
    optimizer: Fixed[Literal["rms_prop", "adam", "momentum", "adagrad", "worker_rms_prop", "worker_momentum"]] = Field(
        "rms_prop",
        description="Optimizer; with worker_, each worker has its own statistics.",
    )
    rms_prop: Free[RMSPropConfig] = Field(RMSPropConfig(), alias="RMSProp", description="RMSProp.")
    adam: Free[AdamConfig] = Field(AdamConfig(), alias="Adam", description="Adam.")
    momentum: Free[MomentumConfig] = Field(
        MomentumConfig(), alias="Momentum", description="Gradient descent with momentum."
    )
    adagrad: Free[AdaGradConfig] = Field(AdaGradConfig(), alias="AdaGrad", description="AdaGrad.")
    combine: Free[Literal["fifo", "delay_compensated"]] = Field(
        "fifo",
        description="delay_compensated: correct gradients for the updates applied since their computation.",
    )
    delay_compensation: Free[float] = Field(
        0.04,
        ge=0,
        description="Weight of the correction of delay_compensated, lambda of Zheng et al. 2017.",
    )
    loss_outlier_deviations: Free[float | None] = Field(
        None,
        gt=1,
        description="Discard gradients whose absolute loss exceeds the worker's mean by this many standard deviations.",
    )

    @property
    def optimizer_section(self) -> OptimizerConfig:
        """The section of the optimizer in use."""
        sections = {"adam": self.adam, "momentum": self.momentum, "adagrad": self.adagrad, "rms_prop": self.rms_prop}
        return sections[self.optimizer.removeprefix("worker_")]

    @property
    def unused_sections(self) -> set[str]:
        """The names, as in a file, of the sections of the optimizers that are not in use."""
        fields = ((name, field.alias or name) for name, field in type(self).model_fields.items())
        sections = {alias: getattr(self, name) for name, alias in fields}
        used = self.optimizer_section
        return {alias for alias, value in sections.items() if isinstance(value, OptimizerConfig) and value is not used}

    @property
    def gradient_norm_clipping(self) -> float | None:
        """Largest norm of a gradient for the optimizer in use; None: no limit."""
        return self.optimizer_section.gradient_norm_clipping

    @property
    def schedule(self) -> Schedule:
        """The learning rate by global step."""
        return Schedule(self.initial_learning_rate, self.max_global_step if self.anneal_learning_rate else None)

    @property
    def staleness_bound(self) -> int | None:
        """Largest staleness of a gradient; None: no limit. If delays are compensated, there is always a limit."""
        default = DEFAULT_RING if self.combine == "delay_compensated" else None
        return default if self.max_staleness is None else self.max_staleness

    @property
    def update_patience(self) -> float | None:
        """Seconds that a synchronous update waits for workers; None: each gradient is an update of its own."""
        return None

    @model_validator(mode="after")
    def _check_max_staleness(self) -> ConfigBase:
        bound, own = self.staleness_bound, self.sync_interval - 1
        if bound is not None and bound < own:
            raise ValueError(
                f"with sync_interval {self.sync_interval} a worker's own gradients are up to {own} versions old, and "
                f"max_staleness {bound} would discard them; raise max_staleness, or lower sync_interval"
            )
        return self

    @model_validator(mode="after")
    def _check_combine(self) -> ConfigBase:
        if self.combine == "delay_compensated":
            if self.optimizer.startswith("worker_"):
                raise ValueError(
                    f"with optimizer {self.optimizer} workers send updates, and delay_compensated needs gradients; set "
                    f"optimizer to {self.optimizer.removeprefix('worker_')}, or combine to fifo"
                )
            if self.max_staleness is not None and self.max_staleness > MAX_RING:
                raise ValueError(
                    f"with delay_compensated, max_staleness must be at most {MAX_RING}, not {self.max_staleness}: "
                    "a copy of the parameters is kept for each version"
                )
        return self

    def optimizer_spec(self) -> OptimizerSpec:
        """Return the optimizer of the parameter server."""
        from relaax.optim.optimizers import Add

        return Add() if self.optimizer.startswith("worker_") else self.optimizer_section.spec()

    def worker_optimizer_spec(self) -> OptimizerSpec | None:
        """Return the optimizer of each worker; None if the parameter server runs the optimizer."""
        return self.optimizer_section.spec() if self.optimizer.startswith("worker_") else None

    def model_description(self) -> dict[str, Any]:
        """Return the keys that a worker and the parameter server must agree on: all but `path`, `seed` and `gpu`."""
        return self.model_dump(mode="json", by_alias=True, exclude={"path", "seed", "gpu"})


def size_mismatch(config: ConfigBase, observation_space: Space, action_space: Space) -> str | None:
    """Return a sentence that refuses spaces which contradict `state_size` or `action_size`; None if they agree."""
    if config.state_size is not None:
        wanted = [config.state_size] if isinstance(config.state_size, int) else list(config.state_size)
        shapes = [list(element.shape) for element in observation_space.elements()]
        if shapes != [wanted]:
            return f"algorithm.state_size is {config.state_size}, the client's observation space is {observation_space}"
    if config.action_size is not None and config.action_size != space_size(action_space):
        return f"algorithm.action_size is {config.action_size}, the client's action space is {action_space}"
    return None


def space_size(space: Space) -> int:
    """Return the number of choices of a Discrete space, or of numbers in a value of another space."""
    if isinstance(space, Discrete):
        return space.n
    return sum(math.prod(element.shape) for element in space.elements())
