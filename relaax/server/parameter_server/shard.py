"""A contiguous range of the global parameters, its optimizer and its version."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.bridge.moments import MAX_STATISTIC_NAME, Moments
from relaax.server.parameter_server.ledger import Discard, Ledger, Outcome
from relaax.server.parameter_server.schedule import Schedule
from relaax.tf.flat_variable import FlatVariable
from relaax.tf.optimizers import OptimizerSpec, Slots

FlatVector = npt.NDArray[np.float32]
Statistics = Mapping[str, Moments]


class PushRefused(Exception):
    """A push that no correct worker sends. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Push:
    """An update. `gradient` is float32 of the shard's length, or None to advance the counters only.

    `global_step` is what the worker last saw: the learning rate is annealed by it, so that all shards use the same.
    `statistics` are samples, to be merged with those of other pushes.
    """

    worker: str
    push_id: int
    base_version: int
    gradient: FlatVector | None
    env_steps: int
    frames: int
    global_step: int
    statistics: Statistics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a shard counts. `version` is the number of updates applied; the others are sums over pushes."""

    version: int = 0
    env_steps: int = 0
    frames: int = 0
    discarded_stale: int = 0
    discarded_not_finite: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """The answer to a push. `parameters` are those of `counters.version`; they and `statistics` never change."""

    outcome: Outcome
    repeated: bool
    counters: Counters
    parameters: FlatVector
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a shard is, at one moment."""

    parameters: FlatVector
    slots: Slots
    counters: Counters
    ledger: Mapping[str, Any]
    statistics: Statistics = field(default_factory=dict)


class Shard:
    """Owns `[start, start + len(initial))` of the flat vector. Does not know how many shards there are.

    Thread-safe. Whatever is handed out is immutable: the vector is copied before a write only where it is still read.
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
    ) -> None:
        self.start = start
        self.size = len(initial)
        self._parameters = FlatVariable(initial)
        self._optimizer = optimizer.create(self.size)
        self._schedule = schedule
        self._max_staleness = max_staleness
        self._counters = Counters()
        self._ledger = Ledger()
        # Replaced, never changed: what was handed out stays as it is.
        self._statistics: Statistics = MappingProxyType({name: Moments.zeros(n) for name, n in statistics.items()})
        self._lock = threading.Lock()

    @property
    def counters(self) -> Counters:
        """The counters now."""
        return self._counters

    def push(self, push: Push) -> Applied:
        """Apply an update once, however often it is sent.

        Raises PushRefused for a gradient of another length, statistics that do not fit, or a base version that is yet
        to come, and PushOutOfOrder; then nothing has changed.
        """
        finite = self._check(push.gradient)
        with self._lock:
            outcome = self._ledger.repeated(push.worker, push.push_id)
            repeated = outcome is not None
            if outcome is None:
                outcome = self._count(push, finite)
            return self._applied(outcome, repeated)

    def repeat(self, worker: str, push_id: int) -> Applied | None:
        """The answer to a push that was counted before; None, and nothing changes, where it was not."""
        with self._lock:
            if not self._ledger.has(worker, push_id):
                return None
            outcome = self._ledger.repeated(worker, push_id)
            assert outcome is not None
            return self._applied(outcome, repeated=True)

    def pull(self) -> tuple[Counters, FlatVector, Statistics]:
        """The counters, and the parameters and statistics that go with them."""
        with self._lock:
            return self._counters, self._parameters.snapshot(), self._statistics

    def forget(self, worker: str) -> None:
        """The worker will push no more."""
        with self._lock:
            self._ledger.forget(worker)

    def snapshot(self) -> Snapshot:
        """Everything, at one moment; nobody waits for what the caller does with it."""
        with self._lock:
            return Snapshot(
                self._parameters.snapshot(),
                self._optimizer.slots(),
                self._counters,
                self._ledger.as_json(),
                self._statistics,
            )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot. Raises ValueError where its lengths, slots or statistics are not this shard's."""
        if snapshot.parameters.shape != (self.size,):
            raise ValueError(f"the vector has {self.size} elements here, {len(snapshot.parameters)} there")
        here, there = (
            {name: moments.size for name, moments in statistics.items()}
            for statistics in (self._statistics, snapshot.statistics)
        )
        if here != there:
            raise ValueError(f"the statistics are {here} here, {there} there")
        with self._lock:
            self._optimizer.restore(snapshot.slots)
            self._parameters.assign(snapshot.parameters)
            self._counters = snapshot.counters
            self._ledger.restore(snapshot.ledger)
            self._statistics = MappingProxyType({name: snapshot.statistics[name] for name in here})

    def _applied(self, outcome: Outcome, repeated: bool) -> Applied:
        return Applied(outcome, repeated, self._counters, self._parameters.snapshot(), self._statistics)

    def _check(self, gradient: FlatVector | None) -> bool:
        """Whether the gradient can be applied. Outside the lock: it reads the whole vector."""
        if gradient is None:
            return True
        if gradient.shape != (self.size,):
            raise PushRefused(f"a gradient of {self.size} elements is needed, not {gradient.size}")
        with np.errstate(all="ignore"):
            # NaN and infinity survive a sum of squares; one that overflows would ruin the optimizer's slots as surely.
            return bool(np.isfinite(np.dot(gradient, gradient)))

    def _count(self, push: Push, finite: bool) -> Outcome:
        before = self._counters
        staleness = before.version - push.base_version
        if staleness < 0:
            raise PushRefused(f"base version {push.base_version} is yet to come, the version is {before.version}")
        statistics = self._merged(push.statistics)
        discard = Discard.NONE
        if push.gradient is None:
            staleness = 0
        elif not finite:
            discard = Discard.NOT_FINITE
        elif self._max_staleness is not None and staleness > self._max_staleness:
            discard = Discard.STALE
        else:
            self._optimizer.apply(self._parameters, push.gradient, self._schedule(push.global_step))
        applied = push.gradient is not None and discard is Discard.NONE
        self._counters = Counters(
            version=before.version + applied,
            env_steps=before.env_steps + push.env_steps,
            frames=before.frames + push.frames,
            discarded_stale=before.discarded_stale + (discard is Discard.STALE),
            discarded_not_finite=before.discarded_not_finite + (discard is Discard.NOT_FINITE),
        )
        self._statistics = statistics
        outcome = Outcome(discard, staleness)
        self._ledger.record(push.worker, push.push_id, outcome)
        return outcome

    def _merged(self, samples: Statistics) -> Statistics:
        if not samples:
            return self._statistics
        merged = dict(self._statistics)
        for name, moments in samples.items():
            if name not in merged:
                raise PushRefused(f"there is no statistic named {name[:MAX_STATISTIC_NAME]!r}")
            try:
                merged[name] = merged[name].merged(moments)
            except ValueError as error:
                raise PushRefused(f"statistic {name!r}: {error}") from None
        return MappingProxyType(merged)
