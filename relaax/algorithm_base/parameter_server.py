"""What an algorithm tells the parameter server about its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from relaax.algorithm_base.target_interval import TargetInterval
    from relaax.optim.optimizers import OptimizerSpec
    from relaax.rlx import Space


class ParameterServerBase(ABC):
    """A declaration, so that shards need not know the algorithm.

    Its life: made once in the parameter server, by the first worker's spaces or those of a checkpoint; asked for
    `initial_parameters` if no checkpoint gives them, for `optimizer`, `statistics` and `target_interval`; then dropped.
    """

    def __init__(self, config: Any, observation_space: Space, action_space: Space) -> None:
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return the flat vector that training starts from, float32 [P]. The same seed gives the same numbers."""

    def optimizer(self) -> OptimizerSpec:
        """How gradients are applied. By default what `config.optimizer_spec()` says."""
        spec: OptimizerSpec = self.config.optimizer_spec()
        return spec

    def statistics(self) -> Mapping[str, int]:
        """Statistics that all workers gather together: name and how many numbers one sample has.

        Agents give `context.metrics.statistic` their samples and find the merged moments in `Pulled.statistics`. A name
        has letters, digits and `_ . - /`. By default there are none.
        """
        return {}

    def target_interval(self) -> TargetInterval | None:
        """How often the target network becomes a copy of the parameters; None, as by default, if there is none.

        Agents that train find it in `Pulled.target`. It is the initial parameters until it is renewed first.
        """
        return None
