"""The agent of gorila."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.exploration import LinearAnnealing

from .replay_agent import ReplayAgent


class Agent(ReplayAgent):
    """The actor of Nair et al. 2015 (Algorithm 1): epsilon falls in a straight line, for all actors alike."""

    name = "gorila"

    def _exploration(self) -> npt.NDArray[np.float64]:
        config = self.config
        epsilon = LinearAnnealing(config.initial_epsilon, config.final_epsilon, config.exploration_frames)
        return np.asarray(epsilon(self._pulled.frames), np.float64)
