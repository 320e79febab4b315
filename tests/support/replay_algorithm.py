"""An algorithm with a replay memory for tests of roles. All gradients are ones, so the parameters count the updates.

Agents insert each observation and reward, and push steps without a gradient. With `bundle`, the agents also learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    AgentBase,
    AgentContext,
    Box,
    ConfigBase,
    Discrete,
    LearnerBase,
    LearnerContext,
    Leaves,
    ParameterServerBase,
    ReplayBase,
    Space,
    StepResult,
)
from relaax.replay.interfaces import Insertion, ReplayMemory, Sampled
from relaax.replay.spec import Field, TableDeclaration, TableSpec

SIZE = 4
NAME = "experience"


class Config(ConfigBase):
    bundle: bool = False
    batch: int = 8
    min_size: int = 16


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return np.zeros(SIZE, np.float32)


class Replay(ReplayBase):
    def table(self) -> TableDeclaration:
        assert isinstance(self.observation_space, Box)
        fields = {"observation": Field("float32", self.observation_space.shape), "reward": Field("float32")}
        spec = TableSpec(NAME, fields, 1000, sampler="prioritized")
        return TableDeclaration(spec, min_size=self.config.min_size)

    @classmethod
    def bundled(cls, config: Config) -> bool:
        return config.bundle


class Learner(LearnerBase):
    def __init__(self, config: Config, context: LearnerContext) -> None:
        super().__init__(config, context)
        self._pulled = context.parameters.pull()

    @property
    def batch_size(self) -> int:
        return int(self.config.batch)

    def step(self, sampled: Sampled) -> None:
        pushed = self.context.parameters.push(np.ones_like(self._pulled.parameters), 0)
        self.context.replay.update_priorities(sampled, np.full(self.batch_size, 0.5))
        assert pushed.pulled is not None
        self._pulled = pushed.pulled


class Agent(AgentBase):
    @classmethod
    def refusal(cls, config: Config, observation_space: Space, action_space: Space) -> str | None:
        return None if isinstance(action_space, Discrete) else f"the test cannot handle {action_space}"

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        self._learner: Learner | None = None
        self._memory: ReplayMemory | None = context.replay
        assert (self._memory is None) == context.exploit
        context.parameters.pull()
        if config.bundle and self._memory is not None:
            self._learner = Learner(config, LearnerContext.beside(context, context.actors[0]))

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(observations)

    def step(self, step: StepResult) -> Leaves:
        if self._memory is not None:
            for writer in self._memory.writers:
                its = writer.environments
                columns: dict[str, Any] = {
                    "observation": step.observations[0][its].astype(np.float32),
                    "reward": np.asarray(step.rewards, np.float32)[its],
                }
                writer.insert(Insertion(columns))
            self.context.parameters.push(None, self.context.environments)
        return self._act(step.observations)

    def learn(self) -> None:
        if self._learner is not None and self._memory is not None:
            sampled = self._memory.sample(self._learner.batch_size, 0.0)
            if sampled is not None:
                self._learner.step(sampled)

    def _act(self, observations: Leaves) -> Leaves:
        return [np.zeros(self.context.environments, np.int64)]
