"""The configuration sections of optimizers, and the optimizers that they describe."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from relaax.configuration import Section

if TYPE_CHECKING:
    from relaax.optim.optimizers import OptimizerSpec


Centered = Annotated[
    bool,
    Field(
        description="The square root is that of the gradients' variance, the mean of squares less the square of the "
        "mean (Graves 2013); false: of the mean of squares.",
    ),
]


class OptimizerConfig(Section):
    """The keys of every optimizer's section."""

    gradient_norm_clipping: float | None = Field(
        40.0, gt=0, description="Longer gradients are scaled down to this norm; null leaves them as they are."
    )

    @abstractmethod
    def spec(self) -> OptimizerSpec:
        """Return the optimizer with these constants."""


class RMSPropConfig(OptimizerConfig):
    """RMSProp (Mnih et al. 2016): g <- decay g + (1 - decay) d^2, theta <- theta - rate d / sqrt(g + epsilon).

    Centered (Graves 2013): m <- decay m + (1 - decay) d, theta <- theta - rate d / sqrt(g - m^2 + epsilon).
    """

    decay: float = Field(0.99, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(1e-5, gt=0, description="Added to that mean inside the square root.")
    centered: Centered = False

    def spec(self) -> OptimizerSpec:
        from relaax.optim.optimizers import RMSProp

        return RMSProp(decay=self.decay, epsilon=self.epsilon, centered=self.centered)


class AdamConfig(OptimizerConfig):
    """Adam (Kingma and Ba 2015, the form at the end of section 2), its moments shared by all workers."""

    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of gradients.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the mean of squared gradients.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of that mean.")

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
