"""A model: its description, its shard, and access control for calls that use it."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.config import Schedule
from relaax.algorithm_base.declarations import TargetInterval
from relaax.nn.devices import computes_on_gpu
from relaax.nn.recycled_memory import Allocator, own_memory
from relaax.optim.learning_rates import RateFactors, cut_rate_factors
from relaax.optim.optimizers import OptimizerSpec
from relaax.parameters.moments import Moments
from relaax.parameters.shard_client import shard_range
from relaax.server.parameter_server.shard.shard import DelayCompensation, Shard
from relaax.server.parameter_server.shard.synchronous import Synchronization
from relaax.server.service_errors import TryAgain
from relaax.transport.grpc_options import MAX_PARAMETERS
from relaax.transport.process_resources import keep_freed_memory


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """Shard `index`, from 0, of `count`. Shard 0 leads: it counts steps, assigns actors and publishes checkpoints."""

    index: int = 0
    count: int = 1

    @property
    def part(self) -> str:
        """The name of this shard's part in a checkpoint."""
        return f"shard-{self.index}"

    def range(self, parameters: int) -> tuple[int, int]:
        """Return the range of the shard in a vector of `parameters` elements: first element, and one past the last."""
        return shard_range(parameters, self.index, self.count)

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"


class ModelRefused(Exception):
    """A worker or checkpoint does not fit this parameter server. The message names the difference."""


def differs_from_worker(difference: str) -> ModelRefused:
    """Return the error for a worker whose configuration is not this parameter server's."""
    return ModelRefused(f"the configuration of the worker differs from this parameter server's: {difference}")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model before its first update.

    initial: the flat vector, float32 [P]. statistics: lengths by name. moments: initial values of some of them. target:
    the interval between two renewals of the target network; None without one. rate_factors: factors of the learning
    rate by range. synchronization: None if each gradient is an update of its own.
    """

    initial: npt.NDArray[np.float32]
    optimizer: OptimizerSpec
    schedule: Schedule
    max_global_step: int
    max_staleness: int | None = None
    statistics: Mapping[str, int] = field(default_factory=dict)
    moments: Mapping[str, Moments] = field(default_factory=dict)
    compensation: DelayCompensation | None = None
    target: TargetInterval | None = None
    rate_factors: RateFactors = ()
    synchronization: Synchronization | None = None


ModelFactory = Callable[[str], ModelSpec]
"""Return the model that a fingerprint describes. Raises ModelRefused."""

Difference = Callable[[str, str], str | None]
"""Return the first difference between a worker's fingerprint and this server's; None if they are equal."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model in training. `spec.initial` is the shard's range; `parameters` is the length of the whole vector."""

    fingerprint: str
    spec: ModelSpec
    shard: Shard
    parameters: int

    @property
    def spaces(self) -> str:
        """The spaces of the fingerprint as canonical JSON."""
        description = json.loads(self.fingerprint)
        spaces = {name: description.get(name) for name in ("action_space", "observation_space")}
        return json.dumps(spaces, sort_keys=True, separators=(",", ":"))


def make_model(
    factory: ModelFactory, fingerprint: str, position: ShardPosition, empty: Allocator = own_memory
) -> Model:
    """Return the model before its first update, with the shard's range of the vector.

    `empty` allocates the memory of snapshots. Raises ModelRefused.
    """
    spec = factory(fingerprint)
    parameters = len(spec.initial)
    if parameters < position.count:
        raise ModelRefused(f"the model has {parameters} parameters: too few for {position.count} shards")
    start, end = position.range(parameters)
    if end - start > MAX_PARAMETERS:
        raise ModelRefused(
            f"the model has {parameters} parameters: a shard holds at most {MAX_PARAMETERS}; use at least "
            f"{-(-parameters // MAX_PARAMETERS)} shards"
        )
    keep_freed_memory(4 * (end - start) * (2 if spec.target is not None and spec.target.is_soft else 1))
    if position.count > 1:  # drop the ranges of other shards; only shard 0 has statistics
        own, moments = (spec.statistics, spec.moments) if position.index == 0 else ({}, {})
        spec = replace(spec, initial=spec.initial[start:end].copy(), statistics=own, moments=moments)
    shard = Shard(
        spec.initial,
        spec.optimizer,
        spec.schedule,
        start=start,
        max_staleness=spec.max_staleness,
        statistics=spec.statistics,
        moments=spec.moments,
        compensation=spec.compensation,
        target=spec.target,
        rate_factors=cut_rate_factors(spec.rate_factors, start, end),
        synchronization=spec.synchronization,
        on_device=computes_on_gpu(),
        empty=empty,
    )
    return Model(fingerprint, spec, shard, parameters)


class ModelAccess:
    """Access to the model: open, held for a limited time, or closed with a reason. Thread-safe.

    While it is held, updates wait and other calls proceed. A hold expires, so that training continues if the caller of
    `hold` disappears. While it is closed, calls raise TryAgain with the reason.
    """

    def __init__(self, closed: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.closed = closed
        """The reason why access is closed; empty if it is open."""
        self._clock = clock
        self._held_until = -math.inf
        self._inside = [0, 0]  # numbers of calls that only read, and of updates
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def enter(self, *, update: bool = False) -> Iterator[None]:
        """Enter a call. An update waits for the end of a hold. Raises TryAgain if access is closed."""
        with self._changed:
            while update and not self.closed and (left := self._held_until - self._clock()) > 0:
                self._changed.wait(left)
            if self.closed:
                raise TryAgain(self.closed)
            self._inside[update] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[update] -= 1
                self._changed.notify_all()

    def hold(self, seconds: float) -> bool:
        """Make updates wait for `seconds`. Return whether all running updates have ended by then."""
        with self._changed:
            self._held_until = self._clock() + seconds
            return self._changed.wait_for(lambda: not self._inside[True], seconds)

    def release(self) -> bool:
        """End the hold. Return False if it had expired before, because updates may have been applied since."""
        with self._changed:
            unbroken = self._clock() < self._held_until
            self._held_until = -math.inf
            self._changed.notify_all()
            return unbroken

    def close(self, sentence: str) -> None:
        """Close the access with the reason `sentence`, and wait until all running calls have ended."""
        with self._changed:
            self.closed = sentence
            self._held_until = -math.inf
            self._changed.notify_all()
            self._changed.wait_for(lambda: not any(self._inside))

    def open(self) -> None:
        """Open the access."""
        with self._changed:
            self.closed = ""
            self._changed.notify_all()
