"""A contiguous range of the global parameters, its optimizer and its version."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from relaax.algorithm_base.config import Schedule
from relaax.algorithm_base.declarations import TargetInterval
from relaax.nn.recycled_memory import Allocator, own_memory
from relaax.optim import host_optimizers
from relaax.optim.host_optimizers import Fused
from relaax.optim.optimizers import FlatVariable, Optimizer, OptimizerSpec, Slots
from relaax.optim.vector import FlatVector, HostVector, Vector, is_finite
from relaax.server.parameter_server.shard.merged_statistics import MergedStatistics
from relaax.server.parameter_server.shard.state import (
    Counters,
    Discard,
    Ledger,
    Outcome,
    Snapshot,
    SnapshotMemory,
    Statistics,
    TargetCopy,
    mark,
)
from relaax.server.parameter_server.shard.target import TargetNetwork

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DelayCompensation:
    """The constants: `strength` is λ of Algorithm 2; `reach` is how many versions old a gradient may be."""

    strength: float
    reach: int


class Compensator:
    """Correct gradients (Zheng et al. 2017, Algorithm 2). Not thread-safe: it lives under its shard's lock.

    g + λ·g·g·(θ_now − θ_base), element by element: g·g stands for the diagonal of the Hessian, so this is the gradient
    at θ_now to first order. With λ = 0 it is g. θ_base comes from a ring of the newest `reach` + 1 versions, which are
    snapshots that never change; a gradient older than that is too stale. The ring is no state: a restored shard has its
    current version only, and gradients of an earlier life are refused anyway.
    """

    def __init__(self, compensation: DelayCompensation) -> None:
        self._strength = np.float32(compensation.strength)
        self._ring: deque[tuple[int, FlatVector]] = deque(maxlen=compensation.reach + 1)

    def begin(self, version: int, parameters: Vector) -> None:
        """Start with these parameters as this version: initially, and after a restore."""
        self._ring.clear()
        self.applied(version, parameters)

    def applied(self, version: int, parameters: Vector) -> None:
        """Note that an update has made these parameters, as this version."""
        self._ring.append((version, parameters.snapshot()))

    def reaches(self, base_version: int) -> bool:
        """Tell whether a gradient that was computed on this version can be corrected; else it is too stale."""
        return base_version >= self._ring[0][0]

    def corrected(self, gradient: FlatVector, base_version: int) -> FlatVector:
        """Return what is to be applied for a finite gradient, float32 [size]. It may not be finite."""
        now = self._ring[-1][1]
        base = self._ring[base_version - self._ring[0][0]][1]
        if base is now or not self._strength:
            return gradient
        with np.errstate(all="ignore"):  # what comes out is checked
            compensated: FlatVector = np.subtract(now, base)
            compensated *= gradient
            compensated *= self._strength
            compensated += 1
            compensated *= gradient
        return compensated


class CannotShare(Exception):
    """Workers cannot change the shard's parameters themselves. The message says why, of "it"."""


class PushRefused(Exception):
    """No correct worker sends such a push. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Push:
    """An update. `gradient` is float32 of the shard's length, or None to advance the counters only.

    `global_step` is what the worker last saw: the learning rate is annealed by it, so that all shards use the same.
    `statistics`: samples of `client`, to be merged with the samples of other pushes. `withheld`: the worker keeps a
    gradient back because its loss is an outlier. `applied`: the worker has applied it in memory that the shard shares
    with it. `target_generation`: the newest generation of the target network that it knows.
    """

    worker: str
    push_id: int
    base_version: int
    gradient: FlatVector | None
    env_steps: int
    frames: int
    global_step: int
    statistics: Statistics = field(default_factory=dict)
    withheld: bool = False
    applied: bool = False
    want_parameters: bool = True
    target_generation: int = 0
    client: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to a push. `parameters` are those of `counters.version`, None if they were not wanted; they and
    `statistics` never change. `target_generation` is that of the target network now, None if there is none.
    """

    outcome: Outcome
    repeated: bool
    counters: Counters
    parameters: FlatVector | None
    statistics: Statistics
    target_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """What a worker needs to apply gradients itself: parameters and slots, and the update (see `Fused`)."""

    vectors: tuple[FlatVector, ...]
    function: str
    numbers: tuple[np.float32, ...]


_PARAMETERS = "parameters"


class Shard:
    """Owns `[start, start + len(initial))` of the flat vector. Does not know how many shards there are.

    Thread-safe. Whatever is handed out is immutable. `on_device`: the vector and its optimizer are where TensorFlow
    computes, such as on a GPU, and not in the host's memory. `empty` makes the memory of snapshots, in the host's.
    """

    def __init__(
        self,
        initial: FlatVector,
        optimizer: OptimizerSpec,
        schedule: Schedule,
        *,
        start: int = 0,
        max_staleness: int | None = None,
        statistics: Mapping[str, int] = MappingProxyType({}),
        compensation: DelayCompensation | None = None,
        target: TargetInterval | None = None,
        on_device: bool = False,
        empty: Allocator = own_memory,
    ) -> None:
        self.start = start
        self.size = len(initial)
        self._parameters: Vector = FlatVariable(initial) if on_device else HostVector(initial, empty)
        create = optimizer.create if on_device else partial(host_optimizers.create, optimizer)
        self._optimizer: Optimizer[Any] = create(self.size)
        self._compensator = None if compensation is None else Compensator(compensation)
        self._begin(0)
        # Whose range is the first is shard 0.
        self._target = None if target is None else TargetNetwork(target, self._parameters, leads=start == 0)
        self._schedule = schedule
        self._max_staleness = max_staleness
        self._counters = Counters()
        self._ledger = Ledger()
        self._statistics = MergedStatistics(statistics)
        self._shared = False
        self._prepared: SnapshotMemory | None = None
        self._lock = threading.Lock()

    @property
    def counters(self) -> Counters:
        """The present counters."""
        return self._counters

    @property
    def dropped_samples(self) -> int:
        """Samples of statistics that could not be merged, in this process's life."""
        return self._statistics.dropped_samples

    @property
    def outlying_clients(self) -> int:
        """How many clients have samples that are left out of the statistics now, as outliers."""
        with self._lock:
            return self._statistics.outlying_clients

    def push(self, push: Push) -> Applied:
        """Apply an update once, however often it is sent.

        Raises PushRefused for a gradient of another length or one that is both there and withheld, statistics that do
        not fit, or a base version that is yet to come, and PushOutOfOrder; then nothing has changed.
        """
        finite = self._check(push)
        with self._lock:
            outcome = self._ledger.repeated(push.worker, push.push_id)
            repeated = outcome is not None
            if outcome is None:
                outcome = self._count(push, finite)
            return self._applied(outcome, repeated, push.want_parameters)

    def repeat(self, worker: str, push_id: int) -> Applied | None:
        """Return the answer to a push that was counted before; None, without any change, if it was not."""
        with self._lock:
            if not self._ledger.has(worker, push_id):
                return None
            outcome = self._ledger.repeated(worker, push_id)
            assert outcome is not None
            return self._applied(outcome, repeated=True, want_parameters=True)

    @property
    def target_interval(self) -> TargetInterval | None:
        """How often the target network is renewed; None if the algorithm declares none."""
        return None if self._target is None else self._target.interval

    @property
    def target(self) -> TargetCopy | None:
        """The target network; None if the algorithm declares none."""
        return None if self._target is None else self._target.copy

    @property
    def target_age(self) -> tuple[str, int] | None:
        """See `TargetNetwork.age`; None without a target network."""
        return None if self._target is None else self._target.age(self._counters)

    def hear(self, target_generation: int) -> TargetCopy | None:
        """Renew the target network if this generation is newer, unless this is shard 0. Return it."""
        with self._lock:
            if self._target is not None:
                self._target.hear(target_generation, self._parameters)
            return self.target

    def pull(self) -> tuple[Counters, FlatVector, Statistics]:
        """Return the counters, and the parameters and statistics that belong to them."""
        with self._lock:
            return self._counters, self._parameters.snapshot(), self._statistics.merged

    def share(self, empty: Allocator) -> Shared:
        """Let workers change parameters and slots themselves from now on, in memory that `empty` makes (hogwild).

        Raises CannotShare if the shard promises what then nobody could keep, and what `empty` raises; then nothing
        has changed.
        """
        with self._lock:
            if not isinstance(self._parameters, HostVector):
                raise CannotShare("its parameters are on a GPU")
            if not isinstance(self._optimizer, Fused):
                raise CannotShare("its optimizer is none of rms_prop, momentum and adagrad")
            if self._compensator is not None:
                raise CannotShare("it corrects gradients (algorithm.combine)")
            if self._max_staleness is not None:
                raise CannotShare("it discards stale gradients (algorithm.max_staleness)")
            vectors = (self._parameters, *self._optimizer.vectors.values())
            if not self._shared:
                memory = [empty(self.size) for _ in vectors]
                for vector, its in zip(vectors, memory, strict=True):
                    vector.move_to(its)
                self._shared = True
            live = tuple(vector.writable() for vector in vectors)
            return Shared(live, self._optimizer.function, self._optimizer.numbers)

    def forget_snapshots(self, snapshots: Iterable[FlatVector]) -> None:
        """Release parameters whose readers have gone without a goodbye: they will not be written again."""
        with self._lock:
            for snapshot in snapshots:
                if isinstance(self._parameters, HostVector):
                    self._parameters.discard_snapshot(snapshot)

    def forget(self, worker: str) -> None:
        """Forget a worker that will push no more."""
        with self._lock:
            self._ledger.forget(worker)

    @property
    def mark(self) -> object:
        """A value that is the same as long as the shard's state is. Nothing is copied."""
        with self._lock:
            return mark(self._counters, self._statistics.merged, self.target)

    def prepare(self) -> None:
        """Allocate the memory of the next snapshot, as much as the shard has itself: taking it then takes no longer
        than copying.

        It stays until the snapshot or `let_go`.
        """
        if self._prepared is None:
            self._prepared = self._copies()

    def let_go(self) -> None:
        """Free the prepared memory."""
        self._prepared = None

    def snapshot(self) -> Snapshot:
        """Return the whole state at one moment. Pushes wait while it is copied, and for nothing afterwards."""
        copies, self._prepared = self._prepared, None
        if copies is None:
            copies = self._copies()
        with self._lock:
            begun = time.perf_counter()
            arrays = copies.take(self._arrays())
            counters, ledger, statistics = self._counters, self._ledger.as_json(), self._statistics.merged
            target = self.target
            seconds = time.perf_counter() - begun
        _log.debug("pushes waited for a snapshot for %.1f ms", seconds * 1e3)
        return Snapshot(arrays.pop(_PARAMETERS), arrays, counters, ledger, statistics, target)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot; a statistic that cannot be merged with starts anew, with a warning. Raises
        ValueError if its lengths, slots or statistics are not this shard's.
        """
        if snapshot.parameters.shape != (self.size,):
            raise ValueError(f"the shard has {self.size} parameters, the checkpoint {len(snapshot.parameters)}")
        ours, theirs = (
            {name: moments.size for name, moments in statistics.items()}
            for statistics in (self._statistics.merged, snapshot.statistics)
        )
        if ours != theirs:
            raise ValueError(f"the statistics are {ours}, those of the checkpoint {theirs}")
        target = snapshot.target or TargetCopy(0, snapshot.parameters)
        if target.vector.shape != (self.size,):
            raise ValueError(f"the shard has {self.size} parameters, the checkpoint's target {len(target.vector)}")
        with self._lock:
            self._optimizer.restore(snapshot.slots)
            if self._target is not None:
                self._target.restore(target, snapshot.counters, self._parameters)
            self._parameters.assign(snapshot.parameters)
            self._begin(snapshot.counters.version)
            self._counters = snapshot.counters
            self._ledger.restore(snapshot.ledger)
            self._statistics.restore(snapshot.statistics)

    def _copies(self) -> SnapshotMemory:
        with self._lock:
            copies = SnapshotMemory(self._arrays())
        copies.touch()
        return copies

    def _arrays(self) -> Slots:
        """Return parameters and slots, shared with the updater: to be dropped before the next push."""
        return {_PARAMETERS: self._parameters.shared(), **self._optimizer.slots()}

    def _applied(self, outcome: Outcome, repeated: bool, want_parameters: bool) -> Applied:
        parameters = self._parameters.snapshot() if want_parameters else None
        generation = None if self._target is None else self._target.copy.generation
        return Applied(outcome, repeated, self._counters, parameters, self._statistics.merged, generation)

    def _check(self, push: Push) -> bool:
        """Check whether the gradient can be applied. Outside the lock, because it reads the whole vector."""
        if push.applied and (push.gradient is not None or push.withheld or not self._shared):
            raise PushRefused("a gradient that was applied is not sent, and memory for it is shared before")
        if push.gradient is None:
            return True
        if push.withheld:
            raise PushRefused("a gradient that is withheld is not sent")
        if push.gradient.shape != (self.size,):
            raise PushRefused(f"a gradient of {self.size} elements is needed, not {push.gradient.size}")
        return is_finite(push.gradient)

    def _count(self, push: Push, finite: bool) -> Outcome:
        before = self._counters
        staleness = before.version - push.base_version
        if staleness < 0:
            raise PushRefused(f"base version {push.base_version} is yet to come, the version is {before.version}")
        try:
            self._statistics.check(push.statistics)
        except ValueError as error:
            raise PushRefused(str(error)) from None
        if self._target is not None:
            self._target.hear(push.target_generation, self._parameters)
        discard, version = Discard.NONE, before.version
        if push.applied:
            version += 1
        elif push.gradient is None:
            staleness = 0
            if push.withheld:
                discard = Discard.LOSS
        elif not finite:
            discard = Discard.NOT_FINITE
        elif self._is_stale(push.base_version, staleness):
            discard = Discard.STALE
        else:
            gradient = push.gradient
            if self._compensator is not None:
                gradient = self._compensator.corrected(gradient, push.base_version)
            if gradient is not push.gradient and not is_finite(gradient):
                discard = Discard.NOT_FINITE
            else:
                version += 1
                self._optimizer.apply(self._parameters, gradient, self._schedule(push.global_step))
                if self._compensator is not None:
                    self._compensator.applied(version, self._parameters)
        self._counters = Counters(
            version=version,
            env_steps=before.env_steps + push.env_steps,
            frames=before.frames + push.frames,
            discarded_stale=before.discarded_stale + (discard is Discard.STALE),
            discarded_not_finite=before.discarded_not_finite + (discard is Discard.NOT_FINITE),
            discarded_loss=before.discarded_loss + (discard is Discard.LOSS),
        )
        self._statistics.add(push.client, push.statistics)
        if self._target is not None:
            self._target.count(self._counters, self._parameters)
        outcome = Outcome(discard, staleness)
        self._ledger.record(push.worker, push.push_id, outcome)
        return outcome

    def _is_stale(self, base_version: int, staleness: int) -> bool:
        if self._max_staleness is not None and staleness > self._max_staleness:
            return True
        return self._compensator is not None and not self._compensator.reaches(base_version)

    def _begin(self, version: int) -> None:
        if self._compensator is not None:
            self._compensator.begin(version, self._parameters)
