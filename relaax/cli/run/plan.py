"""What `relaax run` is to do: the experiment, its environments and their commands."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax.algorithm_base import ConfigBase, find_algorithm
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import (
    Configuration,
    ConfigurationError,
    RunSection,
    find_configuration,
    load_configuration,
    unknown,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """An experiment, checked as far as that goes without its algorithm, whose keys the servers check.

    Importing an algorithm means importing TensorFlow: seconds, and half a gigabyte, that this process can do without.
    """

    name: str
    configuration: Configuration
    algorithm: Path
    run: RunSection
    environment_main: Path
    environment_name: str

    @property
    def target_return(self) -> float | None:
        """Mean return of 100 episodes at which the run has succeeded."""
        return self.run.target_return

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self._algorithm_key("seed"))

    @property
    def max_steps(self) -> int:
        """Environment steps after which the run stops at the latest."""
        return min(self.run.max_steps or 2**63, int(self._algorithm_key("max_global_step")))

    def _algorithm_key(self, key: str) -> float:
        """One of the keys that every algorithm has. Raises ConfigurationError where it is no number."""
        value = self.configuration.algorithm.get(key, ConfigBase.model_fields[key].default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigurationError(f"algorithm.{key}: {value!r} cannot be used: a number is needed")
        return value

    def client_command(self, address: str, index: int) -> list[str]:
        """The command of the environment client number `index`."""
        seed = self.seed * 1000 + index * self.run.envs_per_client
        return [
            sys.executable,
            str(self.environment_main),
            address,
            self.environment_name,
            str(self.run.envs_per_client),
            "--seed",
            str(seed),
            *self.run.arguments,
        ]


def make_plan(config: str, overrides: Sequence[str]) -> Plan:
    """Read and check everything that can be checked before anything is started. Raises ConfigurationError."""
    path = find_configuration(config)
    configuration = load_configuration(path, overrides)
    algorithm = find_algorithm(configuration.algorithm_path, configuration.folder)
    run = configuration.run
    if run.environment is None or run.name is None:
        raise ConfigurationError(
            f"{path}: relaax-run.environment and relaax-run.name say which environment `relaax run` starts, such as "
            "OpenAI_Gym and CartPole-v1; without them start the servers with honcho and connect clients yourself"
        )
    return Plan(
        name=path.stem,
        configuration=configuration,
        algorithm=algorithm,
        run=run,
        environment_main=_environment_main(run.environment, configuration.folder),
        environment_name=run.name,
    )


def _environment_main(environment: str, folder: Path) -> Path:
    """`main.py` of an environment family, or the script itself: beside the file, here, or bundled."""
    for candidate in (folder / environment, Path.cwd() / environment, bundled_folder("environments") / environment):
        for found in (candidate / "main.py", candidate):
            if found.is_file():
                return found.resolve()
    raise ConfigurationError(
        f"relaax-run.environment: {unknown('environment', environment, bundled_names('environments'))}"
    )
