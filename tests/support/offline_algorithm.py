"""An algorithm for tests of the RLX server: without learning, and with an agent that follows orders.

The first number of environment 0's observation is an order, one of the constants below. For most orders, all actions
are 0.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, ConfigBase, Leaves, ParameterServerBase, StepResult
from relaax.parameters.interfaces import TrainingEnded
from relaax.rlx import Box, Discrete, Space

ACT, RAISE, SLOW, ILLEGAL, CRASH, FINISH, PROCESS_ID, SLOW_TO_LEARN, LEARN_ALL, LEARN_RAISE, WAIT, LEARN_WAIT = range(
    12
)
SLOW_SECONDS = 1.2
WAIT_SECONDS = 600.0
HELD = 99  # a client with this number of actions is admitted after the file `hold` of the configuration is deleted


class Config(ConfigBase):
    max_global_step: int = 1000
    colour: str = "green"
    hold: str = ""


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return np.zeros(1, np.float32)


class Agent(AgentBase):
    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        if not isinstance(observation_space, Box):
            return f"the test cannot handle the observation space {observation_space}; it handles Box"
        assert isinstance(action_space, Discrete)
        while action_space.n == HELD and Path(config.hold).exists():
            time.sleep(0.01)
        return None

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(observations)

    def step(self, step: StepResult) -> Leaves:
        return self._act(step.observations)

    def learn(self) -> None:
        if self._order == SLOW_TO_LEARN:
            time.sleep(SLOW_SECONDS)
        if self._order == LEARN_WAIT:
            time.sleep(WAIT_SECONDS)
        if self._order == LEARN_ALL:
            raise TrainingEnded(1000)
        if self._order == LEARN_RAISE:
            raise RuntimeError("ordered to fail in learn")

    def _act(self, observations: Leaves) -> Leaves:
        self._order = order = int(observations[0].reshape(-1)[0])
        if order == RAISE:
            raise RuntimeError("ordered to fail")
        if order == SLOW:
            time.sleep(SLOW_SECONDS)
        if order == WAIT:
            time.sleep(WAIT_SECONDS)
        if order == CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
        if order == FINISH:
            raise TrainingEnded(1000)
        value = {ILLEGAL: -1, PROCESS_ID: os.getpid()}.get(order, 0)
        return [np.full(self.context.environments, value, np.int64)]
