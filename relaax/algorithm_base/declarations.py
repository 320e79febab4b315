"""What an algorithm tells the parameter server about its model, and replay servers about its memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from relaax.optim.optimizers import OptimizerSpec
    from relaax.replay.spec import TableDeclaration
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


@dataclass(frozen=True, slots=True)
class TargetInterval:
    """After how many environment frames, or how many updates, the target network becomes a copy of the parameters.

    Exactly one of the two is given, an int from 1 on. Frames are environment steps x frame skip, over all workers.
    Raises ValueError otherwise.
    """

    frames: int | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        given = [count for count in (self.frames, self.updates) if count is not None]
        if len(given) != 1:
            raise ValueError(
                f"a target network is renewed after frames or after updates, not {'both' if given else 'neither'}"
            )
        if type(given[0]) is not int or given[0] < 1:
            raise ValueError(f"a target network is renewed after {given[0]!r} {self.unit}; an int from 1 on is needed")

    @property
    def length(self) -> int:
        """The number of frames or updates."""
        return self.frames or self.updates or 1

    @property
    def unit(self) -> str:
        """What is counted: "frames" or "updates"."""
        return "updates" if self.frames is None else "frames"

    def counted(self, frames: int, updates: int) -> int:
        """Return that one of the two counts by which the target network is renewed."""
        return updates if self.frames is None else frames


class ReplayBase(ABC):
    """A declaration, so that replay servers need not know the algorithm: who comes first has the table made."""

    def __init__(self, config: Any, observation_space: Space, action_space: Space) -> None:
        self.config = config
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def table(self) -> TableDeclaration:
        """Describe the table, of all shards together."""

    @classmethod
    def bundled(cls, config: Any) -> bool:
        """Return whether each worker learns, from a memory of its own session; else learners do, from one for all."""
        return False
