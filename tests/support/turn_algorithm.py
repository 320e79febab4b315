"""An algorithm for environments out of step: its agent journals the outcome of each action, and does not learn.

Each action has its own number, also over several agents, so that a test can follow it from the agent to the environment
and back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Leaves, ParameterServerBase, StepResult
from relaax.rlx import Box, Discrete

SPACES: dict[str, Any] = {"observation_space": Box(shape=(2,)), "action_space": Discrete(2**62)}


class Config(ConfigBase):
    max_global_step: int = 1000
    folder: str = ""


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return np.zeros(1, np.float32)


class Agent(AgentBase):
    """The journal has one entry for each completed action; with `folder`, it is also written to a file there."""

    out_of_step = True

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        assert context.out_of_step
        self.journal: list[dict[str, Any]] = []
        self._next = int.from_bytes(os.urandom(4)) << 24
        self._numbers = np.zeros(context.environments, np.int64)
        self._seen = np.zeros((context.environments, 2), np.float32)
        self._reported = 0
        self._has_acted = False  # since the last `learn`
        name = f"{os.getpid()}-{self._next}.jsonl"
        self._file = (Path(config.folder) / name).open("w") if config.folder else None

    @classmethod
    def refusal(cls, config: Any, observation_space: Any, action_space: Any) -> str | None:
        return None

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(observations[0], np.ones(self.context.environments, np.bool_))

    def step(self, step: StepResult) -> Leaves:
        observations = step.observations[0]
        finals = observations if step.final_observations is None else step.final_observations[0]
        for i in np.flatnonzero(step.acted).tolist():
            after = finals[i] if step.truncated[i] else observations[i]
            entry = {
                "number": int(self._numbers[i]),
                "reward": float(step.rewards[i]),
                "terminated": bool(step.terminated[i]),
                "truncated": bool(step.truncated[i]),
                "chosen_on": self._seen[i].tolist(),
                "after": None if step.terminated[i] else after.tolist(),
            }
            self.journal.append(entry)
            self._write(entry)
        held = np.zeros_like(step.first) if step.held is None else step.held
        return self._act(observations, ~held)

    def learn(self) -> None:
        assert self._has_acted, "an agent learns only after it has acted"
        self._has_acted = False

    def close(self) -> None:
        self._write_episodes()
        if self._file is not None:
            self._file.close()

    def _act(self, observations: npt.NDArray[Any], wanted: npt.NDArray[np.bool_]) -> Leaves:
        assert np.isfinite(observations).all(), "a void observation reached the agent"
        self._write_episodes()
        self._has_acted = True
        n = self.context.environments
        numbers, self._next = np.arange(self._next, self._next + n), self._next + n
        self._numbers = np.where(wanted, numbers, self._numbers)
        self._seen = np.where(wanted[:, None], observations, self._seen)
        return [numbers]

    def _write_episodes(self) -> None:
        if self._file is not None:
            episodes = self.context.metrics.episodes  # type: ignore[attr-defined]  # of OfflineMetrics
            for episode_return, length in episodes[self._reported :]:
                self._write({"return": episode_return, "length": length})
            self._reported = len(episodes)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(f"{json.dumps(entry)}\n")
            self._file.flush()
