"""Declarations of an algorithm: its model for the parameter server, its table for the replay servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from relaax.optim.optimizers import OptimizerSpec
    from relaax.replay.spec import TableDeclaration
    from relaax.rlx import Space


class ParameterServerBase(ABC):
    """A declaration of the model, so that shards do not depend on the algorithm.

    The parameter server makes one instance, with the spaces of the first worker or of a checkpoint. It calls
    `initial_parameters` if no checkpoint has them, and `optimizer`, `learning_rates`, `statistics` and
    `target_interval`. Then it drops the instance.
    """

    def __init__(self, config: Any, observation_space: Space, action_space: Space) -> None:
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        """Return the initial parameters, a flat vector float32 [P]. The same seed must give the same numbers."""

    def layout(self) -> Mapping[str, tuple[int, ...]]:
        """Return names and shapes of the arrays in the flat vector, in order.

        They are compared if a training starts with the parameters of another one. The default, an empty mapping, means
        that only lengths are compared.
        """
        return {}

    def optimizer(self) -> OptimizerSpec:
        """Return the optimizer that applies gradients, by default `config.optimizer_spec()`."""
        spec: OptimizerSpec = self.config.optimizer_spec()
        return spec

    def learning_rates(self) -> Sequence[tuple[int, float]]:
        """Return the factors of the learning rate by range: (length, factor) of consecutive ranges of the vector.

        The lengths add up to the number of parameters. Factors are finite and at least 0; 0 freezes a range. The
        default, an empty sequence, is factor 1 for all parameters.
        """
        return ()

    def statistics(self) -> Mapping[str, int]:
        """Return the statistics that all workers share: the name of each, and the length of one sample.

        Agents pass samples to `context.metrics.statistic`; `Pulled.statistics` has the merged moments of all workers. A
        name consists of letters, digits and `_ . - /`. The default is an empty mapping.
        """
        return {}

    def target_interval(self) -> TargetInterval | None:
        """Return how often and how far the target network is renewed; None, the default, without a target network.

        Training agents and learners receive it as `Pulled.target`. Until the first renewal it equals the initial
        parameters.
        """
        return None


@dataclass(frozen=True, slots=True)
class TargetInterval:
    """Number of environment frames, or of updates, between two renewals of the target network.

    A renewal copies the parameters. With `tau` below 1 it moves the target network towards them (a soft target network,
    Lillicrap et al. 2016, algorithm 1): θ′ ← θ′ + τ (θ − θ′). Frames are environment steps x frame skip, over all
    workers. Raises ValueError unless exactly one of the two is given, as an int of at least 1, if `tau` is not in (0,
    1], or if it is below 1 and the interval is in frames.
    """

    frames: int | None = None
    updates: int | None = None
    tau: float = 1.0

    def __post_init__(self) -> None:
        given = [count for count in (self.frames, self.updates) if count is not None]
        if len(given) != 1:
            raise ValueError(
                f"a TargetInterval needs exactly one of frames and updates, not {'both' if given else 'neither'}"
            )
        if type(given[0]) is not int or given[0] < 1:
            raise ValueError(f"{self.unit} of a TargetInterval must be an int of at least 1, not {given[0]!r}")
        if type(self.tau) not in (int, float) or not 0 < self.tau <= 1:
            raise ValueError(f"tau of a TargetInterval must be a number above 0 and at most 1, not {self.tau!r}")
        if self.is_soft and self.updates is None:
            raise ValueError(f"tau below 1 needs a TargetInterval in updates: use updates=1, tau={self.tau!r}")

    @property
    def length(self) -> int:
        """The number of frames or updates."""
        return self.frames or self.updates or 1

    @property
    def unit(self) -> str:
        """Unit of the interval: "frames" or "updates"."""
        return "updates" if self.frames is None else "frames"

    @property
    def is_soft(self) -> bool:
        """Whether a renewal moves the target network only a part of the way to the parameters."""
        return self.tau < 1

    def counted(self, frames: int, updates: int) -> int:
        """Return the count in the unit of the interval."""
        return updates if self.frames is None else frames


class ReplayBase(ABC):
    """A declaration of the table, so that replay servers do not depend on the algorithm."""

    def __init__(self, config: Any, observation_space: Space, action_space: Space) -> None:
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def table(self) -> TableDeclaration:
        """Return the declaration of the table. Its sizes are totals over all shards."""

    @classmethod
    def bundled(cls, config: Any) -> bool:
        """Return whether each worker learns from a table of its session. If not, learners share one table."""
        return False
