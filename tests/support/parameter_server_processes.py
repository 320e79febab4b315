"""Processes of `relaax-parameter-server`, and registrations of workers that fit their configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import load_algorithm
from relaax.configuration import load_configuration
from relaax.hosting.fingerprint import fingerprint
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from relaax.rlx import Box, Discrete
from support.processes import Processes, Running

CONFIGURATION = """
relaax-parameter-server:
  bind: 127.0.0.1:0
  checkpoint-dir: {folder}/from-the-file
  checkpoint-interval: 1000
algorithm:
  path: da3c
  max_global_step: 1000
  network: {{dense: [16]}}
"""


def write_configuration(folder: Path, name: str = "experiment.yaml") -> Path:
    """Write the configuration of a small experiment of 1000 steps."""
    path = folder / name
    path.write_text(CONFIGURATION.format(folder=folder))
    return path


def worker(path: Path, overrides: tuple[str, ...] = ()) -> Registration:
    """Return the registration of a worker with this configuration: a Box of 4 numbers and 2 actions."""
    configuration = load_configuration(path, overrides)
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    config = algorithm.configure(configuration.algorithm)
    return Registration(fingerprint(algorithm.name, config, Box(shape=(4,)), Discrete(2)), session_id="s")


def start(processes: Processes, path: Path, *arguments: str) -> tuple[Running, str]:
    """Start the server, wait until it listens, and return the process and its address."""
    return processes.start_server("relaax-parameter-server", "--config", path, *arguments)


def trained(bridge: ParameterClient, pushes: int, seed: int = 0, env_steps: int = 10) -> npt.NDArray[np.float32]:
    """Push seeded gradients, and return the parameters after the last one."""
    random = np.random.default_rng(seed)
    parameters = bridge.pull().parameters
    for _ in range(pushes):
        pulled = bridge.push(random.standard_normal(len(parameters)).astype(np.float32), env_steps).pulled
        assert pulled is not None
        parameters = pulled.parameters
    return parameters
