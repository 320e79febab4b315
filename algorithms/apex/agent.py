"""The agent of apex."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.exploration import ladder_of_epsilons

from ..gorila.replay_agent import ReplayAgent


class Agent(ReplayAgent):
    """The actor of Horgan et al. 2018 (Algorithm 1): actor i of N explores with epsilon^(1 + alpha i / (N - 1)).

    i and N are among the actors that train now: they change when others connect or disconnect.

    What it puts into the memory has priorities already, by the values that it acted on.
    """

    name = "apex"

    def _exploration(self) -> npt.NDArray[np.float64]:
        config, ranks = self.config, self._ranks
        count = self._pulled.actor_count or len(ranks)
        return ladder_of_epsilons(ranks, count, config.epsilon, config.epsilon_exponent)
