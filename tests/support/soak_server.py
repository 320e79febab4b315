"""What an algorithm whose updates are kept account of tells the parameter server (see `soak_layout`)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import ParameterServerBase
from relaax.optim.optimizers import Add, OptimizerSpec

from .soak_layout import Layout
from .soak_parameters import STATISTIC


class AccountingServer(ParameterServerBase):
    """Before the algorithm's own class among the bases: shards add what they are sent, to a vector with an account."""

    def layout(self) -> Layout:
        """Say where network and account are."""
        network = super().initial_parameters(self.config.seed)  # that of the next base
        return Layout(len(network), self.config.segments, self.config.slots)

    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return self.layout().spread(super().initial_parameters(seed))

    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), STATISTIC: 1}

    def optimizer(self) -> OptimizerSpec:
        return Add()
