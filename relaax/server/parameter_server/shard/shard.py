"""A contiguous range of the global parameters, its optimizer and its version."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from relaax.algorithm_base.config import Schedule
from relaax.algorithm_base.declarations import TargetInterval
from relaax.nn.recycled_memory import Allocator, own_memory
from relaax.optim import host_optimizers
from relaax.optim.host_optimizers import Fused
from relaax.optim.learning_rates import RateFactors
from relaax.optim.optimizers import FlatVariable, Optimizer, OptimizerSpec, Slots, scaled
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
from relaax.server.parameter_server.shard.synchronous import Synchronization, SynchronousCounts, SynchronousUpdates
from relaax.server.parameter_server.shard.target import TargetNetwork

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DelayCompensation:
    """Constants of delay compensation: `strength` is λ of Algorithm 2; `reach` is the maximum staleness."""

    strength: float
    reach: int


class Compensator:
    """Delay compensation of gradients (Zheng et al. 2017, Algorithm 2). Not thread-safe: its shard's lock guards it.

    A corrected gradient is g + λ·g·g·(θ_now − θ_base), element by element: g·g approximates the diagonal of the
    Hessian, so this is the gradient at θ_now to first order. With λ = 0 it is g. θ_base comes from a ring of immutable
    snapshots of the newest `reach` + 1 versions; an older gradient is too stale. Checkpoints do not contain the ring: a
    restored shard has only its current version, and gradients of an earlier incarnation are refused anyway.
    """

    def __init__(self, compensation: DelayCompensation) -> None:
        self._strength = np.float32(compensation.strength)
        self._ring: deque[tuple[int, FlatVector]] = deque(maxlen=compensation.reach + 1)

    def reset(self, version: int, parameters: Vector) -> None:
        """Start the ring with these parameters: initially, and after a restore."""
        self._ring.clear()
        self.add_version(version, parameters)

    def add_version(self, version: int, parameters: Vector) -> None:
        """Add the parameters of a new version, after an update."""
        self._ring.append((version, parameters.snapshot()))

    def can_correct(self, base_version: int) -> bool:
        """Return whether a gradient of this version can be corrected; otherwise it is too stale."""
        return base_version >= self._ring[0][0]

    def corrected(self, gradient: FlatVector, base_version: int) -> FlatVector:
        """Return the corrected form of a finite gradient, float32 [size]. The result may not be finite."""
        now = self._ring[-1][1]
        base = self._ring[base_version - self._ring[0][0]][1]
        if base is now or not self._strength:
            return gradient
        with np.errstate(all="ignore"):  # the caller checks that the result is finite
            compensated: FlatVector = np.subtract(now, base)
            compensated *= gradient
            compensated *= self._strength
            compensated += 1
            compensated *= gradient
        return compensated


class CannotShare(Exception):
    """Workers cannot change the shard's parameters themselves. The message says why; its subject "it" is the shard."""


class PushRefused(Exception):
    """The push is one that no correct worker sends. The message says why."""


@dataclass(frozen=True, slots=True)
class Push:
    """An update. `gradient` is float32 [size of the shard], or None to advance only the counters.

    global_step: the worker's latest value. All shards anneal the learning rate by it, and so use the same rate.
    statistics: samples of `client`, which are merged with those of other pushes.
    withheld: the worker does not send its gradient, because its loss is an outlier.
    applied: the worker has applied its gradient itself, in memory that the shard shares with it.
    target_generation: the newest generation of the target network that the worker has received.
    environments: the worker's number, the weight of its gradient in a synchronous update.
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
    environments: int = 1


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of a push. `parameters` and `statistics` are immutable.

    parameters: those of `counters.version`; None if they were not requested, or if the update is pending.
    target: the current target network; None without one.
    pending: whether the push belongs to a synchronous update that waits for other workers; None without such updates.
    """

    outcome: Outcome
    repeated: bool
    counters: Counters
    parameters: FlatVector | None
    statistics: Statistics
    target: TargetCopy | None = None
    pending: bool | None = None

    @property
    def target_generation(self) -> int | None:
        """The generation of the target network; None without one."""
        return None if self.target is None else self.target.generation


@dataclass(frozen=True, slots=True)
class SharedState:
    """The parameters, slots and update function (see `Fused`) with which a worker applies gradients itself."""

    vectors: tuple[FlatVector, ...]
    function: str
    numbers: tuple[np.float32, ...]


_PARAMETERS = "parameters"


class Shard:
    """A shard: the range `[start, start + len(initial))` of the flat vector. Independent of the number of shards.

    Thread-safe. All returned values are immutable. `on_device`: the vector and its optimizer are on TensorFlow's
    device, such as a GPU, instead of in the host's memory. `empty` allocates the memory of snapshots on the host.
    `rate_factors`: factors of the learning rate by range of the shard.
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
        moments: Statistics = MappingProxyType({}),
        compensation: DelayCompensation | None = None,
        target: TargetInterval | None = None,
        rate_factors: RateFactors = (),
        synchronization: Synchronization | None = None,
        on_device: bool = False,
        empty: Allocator = own_memory,
    ) -> None:
        self.start = start
        self.size = len(initial)
        self._parameters: Vector = FlatVariable(initial) if on_device else HostVector(initial, empty)
        self._optimizer: Optimizer[Any] = (
            scaled(optimizer.create(self.size), rate_factors)
            if on_device
            else host_optimizers.create(optimizer, self.size, rate_factors)
        )
        self._has_one_rate = not rate_factors
        self._compensator = None if compensation is None else Compensator(compensation)
        self._reset_compensator(0)
        # Shard 0 has the first range.
        self._target = None if target is None else TargetNetwork(target, self._parameters, leads=start == 0)
        self._schedule = schedule
        self._max_staleness = max_staleness
        self._counters = Counters()
        self._ledger = Ledger()
        self._statistics = MergedStatistics(statistics)
        if moments:
            self._statistics.restore({**self._statistics.merged, **moments})
        self._shared = False
        self._prepared: SnapshotMemory | None = None
        self._synchronous = None if synchronization is None else SynchronousUpdates(synchronization)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for workers that wait for a synchronous update

    @property
    def counters(self) -> Counters:
        """The current counters."""
        return self._counters

    @property
    def dropped_samples(self) -> int:
        """Number of samples of statistics that this process could not merge."""
        return self._statistics.dropped_samples

    @property
    def synchronous_counts(self) -> SynchronousCounts | None:
        """Sums over the synchronous updates of this process; None without such updates."""
        return None if self._synchronous is None else self._synchronous.counts

    @property
    def outlying_clients(self) -> int:
        """The current number of clients whose samples are excluded from the statistics as outliers."""
        with self._lock:
            return self._statistics.outlying_clients

    def push(self, push: Push) -> PushResult:
        """Apply an update once, however often it is sent.

        Raises PushRefused if the gradient has another length or is sent although it is withheld, if statistics do not
        fit, or if the base version is newer than the current version. Raises PushOutOfOrder. If it raises, the state is
        unchanged.
        """
        finite = self._check(push)
        with self._lock:
            outcome = self._ledger.recorded_outcome(push.worker, push.push_id)
            repeated = outcome is not None
            if outcome is None:
                outcome = self._count(push, finite)
            return self._applied(push.worker, outcome, repeated, push.want_parameters)

    def repeated_result(self, worker: str, push_id: int) -> PushResult | None:
        """Return the result of the worker's last push if it is this one; otherwise return None."""
        with self._lock:
            if not self._ledger.has(worker, push_id):
                return None
            outcome = self._ledger.recorded_outcome(worker, push_id)
            assert outcome is not None
            return self._applied(worker, outcome, repeated=True, want_parameters=True)

    @property
    def target_interval(self) -> TargetInterval | None:
        """The interval between two renewals of the target network; None if the algorithm declares none."""
        return None if self._target is None else self._target.interval

    @property
    def target(self) -> TargetCopy | None:
        """The target network; None if the algorithm declares none."""
        return None if self._target is None else self._target.copy

    @property
    def target_age(self) -> tuple[str, int] | None:
        """See `TargetNetwork.age`; None without a target network."""
        return None if self._target is None else self._target.age(self._counters)

    def advance_target(self, target_generation: int) -> TargetCopy | None:
        """Renew the target network if this generation is newer, unless this is shard 0. Return the network."""
        with self._lock:
            if self._target is not None:
                self._target.advance_to(target_generation, self._parameters)
            return self.target

    def pull(self) -> tuple[Counters, FlatVector, Statistics]:
        """Return the counters, and the parameters and statistics that belong to them."""
        with self._lock:
            return self._counters, self._parameters.snapshot(), self._statistics.merged

    def await_version(self, worker: str, newer_than: int, seconds: float) -> bool:
        """Wait up to `seconds` until the version is above `newer_than`. Return at once without synchronous updates.

        Return whether the caller must call `complete_update`, because the pending update waits for no other worker. A
        worker that has not contributed to it is suspended until its next push or `resume`.
        """
        updates = self._synchronous
        if updates is None:
            return False
        deadline = time.monotonic() + seconds
        with self._lock:
            if self._counters.version <= newer_than:
                updates.suspend(worker)
            while self._counters.version <= newer_than:
                if updates.is_complete:
                    return True
                left = deadline - time.monotonic()
                if left <= 0.0:
                    break
                self._changed.wait(min(left, updates.seconds_left))
            return False

    def complete_update(self) -> None:
        """Apply the pending synchronous update, unless it waits for a worker."""
        with self._lock:
            if self._synchronous is not None and self._synchronous.is_complete:
                self._apply_mean(self._synchronous)
                self._counters = replace(self._counters, version=self._counters.version + 1)
                if self._target is not None:
                    self._target.update(self._counters, self._parameters)

    def resume(self, worker: str) -> None:
        """Let synchronous updates wait again for a worker that `await_version` suspended."""
        if self._synchronous is not None:
            with self._lock:
                self._synchronous.resume(worker)

    def stop_waiting_for(self, worker: str) -> None:
        """Complete synchronous updates without this worker until its next push."""
        with self._lock:
            if self._synchronous is not None:
                self._synchronous.remove(worker)
                self._changed.notify_all()

    def share(self, empty: Allocator) -> SharedState:
        """Let workers change parameters and slots themselves from now on, in memory that `empty` allocates (hogwild).

        Raises CannotShare if the shard's configuration does not allow it, and the errors of `empty`. If it raises, the
        state is unchanged.
        """
        with self._lock:
            if not isinstance(self._parameters, HostVector):
                raise CannotShare("its parameters are on a GPU")
            if not isinstance(self._optimizer, Fused):
                raise CannotShare("its optimizer is not rms_prop, momentum or adagrad")
            if not self._has_one_rate:
                raise CannotShare("its parts have different learning rates (learning_rates of its algorithm)")
            if self._compensator is not None:
                raise CannotShare("it corrects gradients (algorithm.combine)")
            if self._synchronous is not None:
                raise CannotShare("its updates are synchronous (algorithm.sync)")
            if self._max_staleness is not None:
                raise CannotShare("it discards stale gradients (algorithm.max_staleness)")
            vectors = (self._parameters, *self._optimizer.vectors.values())
            if not self._shared:
                memory = [empty(self.size) for _ in vectors]
                for vector, its in zip(vectors, memory, strict=True):
                    vector.move_to(its)
                self._shared = True
            live = tuple(vector.writable() for vector in vectors)
            return SharedState(live, self._optimizer.function, self._optimizer.numbers)

    def release_snapshots(self, snapshots: Iterable[FlatVector]) -> None:
        """Release parameters whose readers have disconnected without releasing them. Their memory is not reused."""
        with self._lock:
            for snapshot in snapshots:
                if isinstance(self._parameters, HostVector):
                    self._parameters.discard_snapshot(snapshot)

    def remove_worker(self, worker: str) -> None:
        """Remove the ledger's entry of a worker that does not push any more."""
        with self._lock:
            self._ledger.remove(worker)

    @property
    def mark(self) -> object:
        """A value that changes whenever the shard's state changes, without a copy of the state."""
        with self._lock:
            return mark(self._counters, self._statistics.merged, self.target)

    def prepare(self) -> None:
        """Allocate the memory of the next snapshot in advance, so that the snapshot takes only the time of copying.

        It is as large as the shard, and stays until the snapshot or `free_prepared`.
        """
        if self._prepared is None:
            self._prepared = self._copies()

    def free_prepared(self) -> None:
        """Free the prepared memory."""
        self._prepared = None

    def snapshot(self) -> Snapshot:
        """Return the whole state at one moment. Pushes wait only while it is copied."""
        copies, self._prepared = self._prepared, None
        if copies is None:
            copies = self._copies()
        with self._lock:
            begun = time.perf_counter()
            arrays = copies.fill(self._arrays())
            counters, ledger, statistics = self._counters, self._ledger.as_json(), self._statistics.merged
            target = self.target
            seconds = time.perf_counter() - begun
        _log.debug("pushes waited for a snapshot for %.1f ms", seconds * 1e3)
        return Snapshot(arrays.pop(_PARAMETERS), arrays, counters, ledger, statistics, target)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot. A statistic with unusable moments starts empty, and a warning is logged.

        Raises ValueError if its lengths, slots or statistics are not those of this shard.
        """
        if snapshot.parameters.shape != (self.size,):
            raise ValueError(
                f"the shard has {self.size} parameters, but its part of the checkpoint has {len(snapshot.parameters)}"
            )
        ours, theirs = (
            {name: moments.size for name, moments in statistics.items()}
            for statistics in (self._statistics.merged, snapshot.statistics)
        )
        if ours != theirs:
            raise ValueError(f"the lengths of the statistics are {ours}, but {theirs} in the checkpoint")
        target = snapshot.target or TargetCopy(0, snapshot.parameters)
        if target.vector.shape != (self.size,):
            raise ValueError(
                f"the shard has {self.size} parameters, but the checkpoint's target network has {len(target.vector)}"
            )
        with self._lock:
            self._optimizer.restore(snapshot.slots)
            if self._target is not None:
                self._target.restore(target, snapshot.counters, self._parameters)
            self._parameters.assign(snapshot.parameters)
            self._reset_compensator(snapshot.counters.version)
            self._counters = snapshot.counters
            self._ledger.restore(snapshot.ledger)
            self._statistics.restore(snapshot.statistics)
            if self._synchronous is not None:
                self._synchronous.reset()

    def _copies(self) -> SnapshotMemory:
        with self._lock:
            copies = SnapshotMemory(self._arrays())
        copies.touch()
        return copies

    def _arrays(self) -> Slots:
        """Return parameters and slots without a copy. The caller must drop them before the next push."""
        return {_PARAMETERS: self._parameters.shared(), **self._optimizer.slots()}

    def _applied(self, worker: str, outcome: Outcome, repeated: bool, want_parameters: bool) -> PushResult:
        pending = None if self._synchronous is None else self._synchronous.has_contribution_of(worker)
        parameters = self._parameters.snapshot() if want_parameters and not pending else None
        return PushResult(outcome, repeated, self._counters, parameters, self._statistics.merged, self.target, pending)

    def _check(self, push: Push) -> bool:
        """Return whether the gradient is finite. Called outside the lock, because it reads the whole vector.

        Raises PushRefused if the gradient contradicts the other fields.
        """
        if push.applied and (push.gradient is not None or push.withheld or not self._shared):
            raise PushRefused("a push with applied=true must not have a gradient, and needs shared memory (hogwild)")
        if push.gradient is None:
            return True
        if push.withheld:
            raise PushRefused("a push with withheld=true must not have a gradient")
        if push.gradient.shape != (self.size,):
            raise PushRefused(f"the pushed gradient must have {self.size} elements, not {push.gradient.size}")
        return is_finite(push.gradient)

    def _count(self, push: Push, finite: bool) -> Outcome:
        before = self._counters
        staleness = before.version - push.base_version
        if staleness < 0:
            raise PushRefused(
                f"the push's base version {push.base_version} is newer than the current version {before.version}"
            )
        try:
            self._statistics.check(push.statistics)
        except ValueError as error:
            raise PushRefused(str(error)) from None
        if self._target is not None:
            self._target.advance_to(push.target_generation, self._parameters)
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
        elif self._synchronous is None:
            gradient = push.gradient
            if self._compensator is not None:
                gradient = self._compensator.corrected(gradient, push.base_version)
            if gradient is not push.gradient and not is_finite(gradient):
                discard = Discard.NOT_FINITE
            else:
                version += 1
                self._optimizer.apply(self._parameters, gradient, self._schedule(push.global_step))
                if self._compensator is not None:
                    self._compensator.add_version(version, self._parameters)
        if self._synchronous is not None:
            version += self._contribute(self._synchronous, push, discard)
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
            self._target.update(self._counters, self._parameters)
        outcome = Outcome(discard, staleness)
        self._ledger.record(push.worker, push.push_id, outcome)
        return outcome

    def _contribute(self, updates: SynchronousUpdates, push: Push, discard: Discard) -> bool:
        """Add a push to the pending synchronous update. Return whether this completed and applied the update.

        A push of an older version adds nothing, but from then on updates wait for its worker.
        """
        if push.base_version == self._counters.version:
            gradient = push.gradient if discard is Discard.NONE else None
            updates.add(push.worker, push.environments, gradient, push.global_step)
        else:
            updates.join(push.worker, push.environments)
        if complete := updates.is_complete:
            self._apply_mean(updates)
        return complete

    def _apply_mean(self, updates: SynchronousUpdates) -> None:
        mean, global_step = updates.finish()
        if mean is not None:
            self._optimizer.apply(self._parameters, mean, self._schedule(global_step))
        self._changed.notify_all()

    def _is_stale(self, base_version: int, staleness: int) -> bool:
        if self._synchronous is not None:
            return staleness > 0
        if self._max_staleness is not None and staleness > self._max_staleness:
            return True
        return self._compensator is not None and not self._compensator.can_correct(base_version)

    def _reset_compensator(self, version: int) -> None:
        if self._compensator is not None:
            self._compensator.reset(version, self._parameters)
