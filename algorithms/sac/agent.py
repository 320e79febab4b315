"""The actor of soft actor-critic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentContext
from relaax.nn.engine import Outputs
from relaax.nn.squashed_gaussian import sample

from .._continuous.agent import ContinuousAgent
from .learner import Learner
from .model import Config


class Agent(ContinuousAgent):
    """An actor that samples the policy."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context, Learner)

    def _explore(self, outputs: Outputs) -> npt.NDArray[np.float32]:
        return sample(outputs, self._rng.standard_normal(self._actions.shape, np.float32)).actions
