"""Parameter servers in this process, with a model small enough to compute by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import TargetInterval
from relaax.algorithm_base.config import Schedule
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.hosting.fingerprint import first_difference
from relaax.lessons.curriculum import Curriculum
from relaax.lessons.ratings import OpponentRatings
from relaax.optim.optimizers import Optimizer, OptimizerSpec, Slots
from relaax.optim.vector import Vector
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import Registration
from relaax.parameters.moments import Moments
from relaax.server.checkpoints.checkpointing import Checkpointer
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.parameter_server.command.server import Server, Timing
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ModelSpec
from relaax.server.parameter_server.shard.synchronous import Synchronization

SIZE = 8


class Descent(OptimizerSpec):
    """Plain gradient descent, θ ← θ − η·Δθ, which is exact for small integers."""

    def create(self, size: int) -> Optimizer[Vector]:
        return _LiveDescent(size)


class _LiveDescent(Optimizer[Vector]):
    def apply(self, parameters: Vector, gradient: npt.NDArray[np.float32], learning_rate: float) -> None:
        parameters.assign(parameters.snapshot() - np.float32(learning_rate) * gradient)

    def slots(self) -> Slots:
        return {}

    def restore(self, slots: Mapping[str, npt.NDArray[Any]]) -> None:
        assert not slots


def fingerprint(algorithm: str = "descent", size: int = SIZE, gamma: float = 0.99) -> str:
    """Return the fingerprint of a worker of these tests."""
    return json.dumps(
        {
            "algorithm": algorithm,
            "configuration": {"gamma": gamma},
            "observation_space": {"size": size},
            "action_space": {"n": 2},
        }
    )


@dataclass(frozen=True)
class Models:
    """A model factory. The parameters are zeros; the observation space gives their number."""

    optimizer: OptimizerSpec = Descent()  # noqa: RUF009 - it is a value
    learning_rate: float = 1.0
    end: int | None = None
    max_global_step: int = 10**9
    max_staleness: int | None = None
    statistics: Mapping[str, int] = field(default_factory=dict)
    target: TargetInterval | None = None
    rate_factors: Sequence[tuple[int, float]] = ()
    synchronization: Synchronization | None = None

    def __call__(self, description: str) -> ModelSpec:
        size = json.loads(description)["observation_space"]["size"]
        return ModelSpec(
            np.zeros(size, np.float32),
            self.optimizer,
            Schedule(self.learning_rate, self.end),
            self.max_global_step,
            self.max_staleness,
            self.statistics,
            target=self.target,
            rate_factors=self.rate_factors,
            synchronization=self.synchronization,
        )


class Running:
    """A parameter server on a free port, with its main loop in a thread."""

    def __init__(
        self,
        models: Models,
        directory: Path | None,
        address: str,
        interval: float,
        status_bind: str | None,
        curriculum: Curriculum | None = None,
        ratings: OpponentRatings | None = None,
    ) -> None:
        self._ends = EndRequests()
        self.core = ParameterServerCore(
            models,
            first_difference,
            on_finished=lambda: self._ends.put(Reason.FINISHED),
            curriculum=curriculum,
            ratings=ratings,
        )
        checkpointer = None
        if directory is not None:
            self.manager = CheckpointManager(LocalStore(directory))
            checkpoint = self.manager.restore()
            if checkpoint is not None:
                self.core.resume(checkpoint, json.dumps(checkpoint.manifest["fingerprint"]))
            core = self.core
            checkpointer = Checkpointer(
                self.manager,
                core.cut,
                interval,
                core.checkpoint_saved,
                mark=core.mark,
                saved=core.mark(),
                on_late=core.checkpoint_late,
            )
        timing = Timing(grace=20.0, linger=0.0, drain=0.2)
        try:
            self.server = Server(
                self.core, address, 100_000, self._ends, checkpointer, timing=timing, status_bind=status_bind
            )
        except BaseException:
            self._ends.close()
            raise
        self.address = self.server.address
        self.ended: tuple[Reason, bool] | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self.server.start()
        self._thread.start()

    def stop(self, reason: Reason = Reason.TERMINATED) -> None:
        """Request the end, as a signal does, and wait for it."""
        self._ends.put(reason)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self._ends.close()

    def join(self) -> tuple[Reason, bool] | None:
        """Wait until the server ends by itself."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.ended

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        assert self.core.model is not None
        return self.core.model.shard.pull()[1]

    @property
    def statistics(self) -> Mapping[str, Moments]:
        assert self.core.model is not None
        return self.core.model.shard.pull()[2]

    @property
    def version(self) -> int:
        assert self.core.model is not None
        return self.core.model.shard.counters.version

    def _run(self) -> None:
        self.ended = self.server.run()


@contextmanager
def running(
    models: Models | None = None,
    directory: Path | None = None,
    address: str = "127.0.0.1:0",
    interval: float = 1000.0,
    status_bind: str | None = None,
    curriculum: Curriculum | None = None,
    ratings: OpponentRatings | None = None,
) -> Iterator[Running]:
    """Start a server, and end it at the end of the block."""
    server = Running(models or Models(), directory, address, interval, status_bind, curriculum, ratings)
    server.start()
    try:
        yield server
    finally:
        if server.ended is None:
            server.stop()
        server.close()


@contextmanager
def parameter_client(address: str | Sequence[str], **options: Any) -> Iterator[ParameterClient]:
    """Open a client of these parameter servers, and close it at the end of the block."""
    client = ParameterClient(address, **options)
    try:
        yield client
    finally:
        client.close()


def registration(**changes: Any) -> Registration:
    """Return the registration of a worker with one environment."""
    return Registration(**{"fingerprint": fingerprint(), **changes})


def gradient(*values: float) -> npt.NDArray[np.float32]:
    """Return a gradient of these values, padded with zeros."""
    vector = np.zeros(SIZE, np.float32)
    vector[: len(values)] = values
    return vector
