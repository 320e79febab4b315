"""The actor of Ape-X DPG."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext
from relaax.algorithm_base.acting.exploration import ladder_of_epsilons
from relaax.nn.engine import Outputs

from .._continuous.agent import ContinuousAgent
from .._continuous.model import MEAN
from .config import Config
from .learner import Learner


class Agent(ContinuousAgent):
    """An actor that adds normally distributed noise to the policy's actions."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context, Learner)

    def _explore(self, outputs: Outputs) -> npt.NDArray[np.float32]:
        noise = self._deviations()[:, None] * self._rng.standard_normal(self._actions.shape)
        return np.clip(np.tanh(outputs[MEAN]) + noise, -1, 1).astype(np.float32)

    def _deviations(self) -> npt.NDArray[np.float64]:
        """Return the standard deviation of each environment's noise, float64 [N]."""
        rank, count = self._pulled.actor_rank, self._pulled.actor_count
        ranks = range(rank, rank + self.context.environments)
        return ladder_of_epsilons(ranks, count or len(ranks), self.config.noise, self.config.noise_exponent)

    def _record_exploration(self) -> None:
        self.context.metrics.scalar("noise", float(np.mean(self._deviations())))
