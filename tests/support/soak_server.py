"""The parameter server class of an algorithm whose updates are counted (see `soak_layout`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import ParameterServerBase
from relaax.optim.optimizers import Add, OptimizerSpec

from .soak_layout import Layout
from .soak_parameters import STATISTIC


class AccountingServer(ParameterServerBase):
    """A mixin that makes shards add the updates that they receive to a vector with counters.

    It stands before the algorithm's own class in the list of bases.
    """

    def layout(self) -> Layout:
        """Return the layout of network and counters."""
        network = super().initial_parameters(self.config.seed)  # of the algorithm's own class
        return Layout(len(network), self.config.segments, self.config.slots)

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return self.layout().spread(super().initial_parameters(seed))

    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), STATISTIC: 1}

    def optimizer(self) -> OptimizerSpec:
        return Add()
