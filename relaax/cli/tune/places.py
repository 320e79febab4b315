"""The places where trials run: this machine, or a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from relaax.cli.options import cores
from relaax.cli.own_command import POLL_SECONDS, run_command
from relaax.files import write_whole

if TYPE_CHECKING:
    from relaax.cluster.trainings import Training

AUTO = "auto"


class Place(Protocol):
    """A place that runs trainings."""

    def cores(self) -> int:
        """Return the number of processors."""

    def train(self, config: str, overrides: list[str], run: Path, shall_end: Callable[[], bool]) -> tuple[int, str]:
        """Train in the run directory `run` until it ends, or until `shall_end` returns true, with a last checkpoint.

        Return the exit code of `relaax run` and the end of its output. An unfinished run is continued.
        """


class LocalTrainings:
    """Trainings in processes of this machine, each with its output in RUN.log."""

    def cores(self) -> int:
        """Return the number of processors that this process may use."""
        return cores()

    def train(self, config: str, overrides: list[str], run: Path, shall_end: Callable[[], bool]) -> tuple[int, str]:
        """Train in a process that ends with this one."""
        words = [word for text in overrides for word in ("--set", text)]
        arguments = ["run", config, "--run-dir", str(run), "--no-progress", *words]
        return run_command(run.with_name(f"{run.name}.log"), arguments, shall_end)


class ClusterTrainings:
    """Trainings on a Ray cluster, which places their processes; the output of each is in RUN.log at its end.

    They are named after the study and the trial, as in tune-da3c_ale-trial-0.
    After this process is killed, they continue; the next start finds them by name.
    """

    def __init__(self, study: str) -> None:
        """Connect to the cluster of RAY_ADDRESS, or to that of this machine. Raises ConfigurationError."""
        from relaax.cluster.trainings import Trainings

        self._study, self._address = study, os.environ.get("RAY_ADDRESS", AUTO)
        self._trainings = Trainings(self._address)

    def cores(self) -> int:
        """Return the number of processors of all machines."""
        return self._trainings.cores()

    def train(self, config: str, overrides: list[str], run: Path, shall_end: Callable[[], bool]) -> tuple[int, str]:
        """Train on the cluster. Raises ConfigurationError if the training's actor is lost."""
        from relaax.cli.cluster.controller import Options

        name, path = f"{self._study}-{run.name}", Path(config)
        if name in self._trainings.names():
            training = self._trainings.find(name)
        else:
            found = str(path.resolve()) if path.is_file() else config
            training = self._trainings.start(name, Options(found, overrides, str(run.resolve()), False, self._address))
        code = _wait(training, shall_end)
        output = training.snapshot(0).log
        training.close()
        write_whole(run.with_name(f"{run.name}.log"), [output])
        return code, output.decode(errors="replace")

    def stop_all(self) -> None:
        """Stop the trainings that an earlier start of the study has left."""
        for name in self._trainings.names():
            if name.startswith(f"{self._study}-trial-"):
                training = self._trainings.find(name)
                _wait(training, lambda: True)
                training.close()


def _wait(training: Training, shall_end: Callable[[], bool]) -> int:
    """Wait for the end of a training, which is terminated when `shall_end` returns true. Return its exit code."""
    terminated = False
    while (code := training.snapshot(0).exit_code) is None:
        if not terminated and shall_end():
            training.terminate()
            terminated = True
        time.sleep(POLL_SECONDS)
    return code
