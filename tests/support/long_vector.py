"""An algorithm that consists of a long parameter vector, to measure the cost of its length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import (
    AgentBase,
    ConfigBase,
    Leaves,
    ParameterServerBase,
    StepResult,
    TargetInterval,
    load_algorithm,
)
from relaax.configuration import load_configuration
from relaax.hosting.fingerprint import fingerprint
from relaax.rlx import Box, Discrete

_CONFIGURATION = """
relaax-parameter-server:
  bind: 127.0.0.1:0
  log-level: DEBUG
  checkpoint-dir: {folder}/checkpoints
  checkpoint-interval: {interval}
  checkpoints-kept: 2
  best-checkpoints-kept: 0
algorithm:
  path: {path}
  length: {length}
  optimizer: {optimizer}
  tau: {tau}
"""


def configuration(
    folder: Path, length: int, optimizer: str = "rms_prop", interval: float = 1e6, tau: float | None = None
) -> Path:
    """Write a configuration with a vector of `length` numbers and a checkpoint every `interval` seconds.

    `tau`: that of a target network renewed by each update; None without a target network.
    """
    values = {"folder": folder, "length": length, "optimizer": optimizer, "interval": f"{interval:f}"}
    path = folder / "long_vector.yaml"
    path.write_text(_CONFIGURATION.format(path=Path(__file__).resolve(), tau="null" if tau is None else tau, **values))
    return path


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of a worker with this configuration."""
    configuration = load_configuration(path)
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    config = algorithm.configure(configuration.algorithm)
    return fingerprint(algorithm.name, config, Box(shape=(1,)), Discrete(2))


class Config(ConfigBase):
    max_global_step: int = 10**12
    length: int = 1000
    tau: float | None = None


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> npt.NDArray[np.float32]:
        return np.random.default_rng(seed).standard_normal(self.config.length, np.float32)

    def target_interval(self) -> TargetInterval | None:
        return None if self.config.tau is None else TargetInterval(updates=1, tau=self.config.tau)


class Agent(AgentBase):
    """An agent that cannot act: only pushes are measured."""

    def reset(self, observations: Leaves) -> Leaves:
        raise NotImplementedError

    def step(self, step: StepResult) -> Leaves:
        raise NotImplementedError
