"""The description of a model for the parameter server: values without an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.config import Schedule
from relaax.algorithm_base.declarations import TargetInterval
from relaax.optim.optimizers import OptimizerSpec
from relaax.server.parameter_server.delay_compensation import DelayCompensation


class ModelRefused(Exception):
    """A worker's or a checkpoint's description does not fit this parameter server. The message says in what."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model before its first update. `initial` is the flat vector, float32 [P]; `statistics` are name to length;
    `target` is how often the target network is renewed, if there is one.
    """

    initial: npt.NDArray[np.float32]
    optimizer: OptimizerSpec
    schedule: Schedule
    max_global_step: int
    max_staleness: int | None = None
    statistics: Mapping[str, int] = field(default_factory=dict)
    compensation: DelayCompensation | None = None
    target: TargetInterval | None = None


ModelFactory = Callable[[str], ModelSpec]
"""Return the model that a fingerprint describes. Raises ModelRefused."""

Difference = Callable[[str, str], str | None]
"""Return the first difference of two fingerprints, a worker's and ours; None if they agree."""
