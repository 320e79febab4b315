"""Synchronous updates of a shard: each is the mean of the gradients of all workers, computed on the same version."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from relaax.metrics.rate_limited_log import RateLimitedLog
from relaax.optim.clipping import clip_by_norm
from relaax.optim.vector import FlatVector

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Synchronization:
    """Constants of synchronous updates.

    patience: seconds, from the first contribution to an update, for which the update waits for other workers.
    max_norm: largest norm of a mean gradient; None for no limit. Each of several shards limits its own part.
    """

    patience: float
    max_norm: float | None = None


@dataclass(slots=True)
class SynchronousCounts:
    """Sums since the process started: updates, contributions to them, and workers that an update did not wait for."""

    updates: int = 0
    contributions: int = 0
    left_out: int = 0


class SynchronousUpdates:
    """The pending update of a shard. Not thread-safe: the shard's lock guards it.

    An update is complete when each *participant* has contributed, or when `patience` has passed since the first
    contribution. A worker participates from its first push on. It no longer participates when it has been removed, or
    when an update was applied without it, until its next push. The gradient of a worker that was removed after its
    contribution still counts.

    A participant is *suspended* while it waits for the updates of other shards, if it has not contributed here: its
    last gradient was too old for this shard only. Updates do not wait for it, because it may itself wait for a worker
    that waits for this shard.

    The mean is weighted by the workers' numbers of environments. If each worker averages over its environments, the
    mean is the gradient of one worker with all of them. Therefore the norm of the mean is limited, not the norm of each
    gradient. Contributions without a gradient have weight 0. Checkpoints do not contain the pending update.
    """

    def __init__(self, constants: Synchronization, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = SynchronousCounts()
        self._constants = constants
        self._clock = clock
        self._participants: dict[str, int] = {}  # numbers of environments
        self._suspended: set[str] = set()
        self._warn = RateLimitedLog(_log)
        self._sum = self._scaled = np.zeros(0, np.float32)
        self._contributors: set[str] = set()
        self._deadline = self._global_step = math.inf
        self._weight = 0
        self._is_scaled = False
        self._start_next()

    def reset(self) -> None:
        """Drop the pending update and all participants: the shard was restored."""
        self._participants.clear()
        self._suspended.clear()
        self._start_next()

    @property
    def seconds_left(self) -> float:
        """Seconds for which the pending update may still wait; infinity before its first contribution."""
        return self._deadline - self._clock()

    @property
    def is_complete(self) -> bool:
        """Whether there is a contribution, and the update waits for no other worker."""
        return bool(self._contributors) and (not self._missing() or self.seconds_left <= 0.0)

    def has_contribution_of(self, worker: str) -> bool:
        """Return whether the worker has contributed to the pending update."""
        return worker in self._contributors

    def join(self, worker: str, environments: int) -> None:
        """Let a worker participate."""
        self._participants[worker] = environments
        self._suspended.discard(worker)

    def remove(self, worker: str) -> None:
        """Do not wait for a worker until its next push."""
        self._participants.pop(worker, None)
        self._suspended.discard(worker)

    def suspend(self, worker: str) -> None:
        """Do not wait for a worker, unless it has contributed, until it is resumed or pushes."""
        if worker in self._participants and worker not in self._contributors:
            self._suspended.add(worker)

    def resume(self, worker: str) -> None:
        """Wait for a suspended worker again: it computes a gradient of the current version."""
        self._suspended.discard(worker)

    def add(self, worker: str, environments: int, gradient: FlatVector | None, global_step: int) -> None:
        """Add a contribution. `gradient`: float32 [size], finite; it is copied. `global_step`: the worker's latest."""
        self.join(worker, environments)
        if not self._contributors:
            self._deadline = self._clock() + self._constants.patience
        self._contributors.add(worker)
        self._global_step = min(self._global_step, global_step)
        if gradient is None:
            return
        if not self._weight:
            if len(self._sum) != len(gradient):
                self._sum, self._scaled = np.empty_like(gradient), np.empty_like(gradient)
            np.copyto(self._sum, gradient)
        else:
            if not self._is_scaled:
                self._sum *= np.float32(self._weight)
                self._is_scaled = True
            np.multiply(gradient, np.float32(environments), out=self._scaled)
            self._sum += self._scaled
        self._weight += environments

    def finish(self) -> tuple[FlatVector | None, int]:
        """Return the mean gradient and the global step for the learning rate, and start the next update.

        The mean is None if no contribution has a gradient. It is valid until the next `add`. The global step is the
        smallest of the contributions: a worker may already know of steps that belong to the next update.
        """
        late = self._missing()
        for worker in late:
            self._warn(
                "an update was applied without worker %s (%d environments), which did not contribute within %g s",
                *(worker[:8], self._participants.pop(worker), self._constants.patience),
            )
        self.counts.updates += 1
        self.counts.contributions += len(self._contributors)
        self.counts.left_out += len(late)
        mean, global_step = (self._sum if self._weight else None), int(self._global_step)
        if mean is not None:
            if self._is_scaled:
                mean *= np.float32(1.0 / self._weight)
            clip_by_norm(mean, self._constants.max_norm)
        self._start_next()
        return mean, global_step

    def _missing(self) -> set[str]:
        return self._participants.keys() - self._contributors - self._suspended

    def _start_next(self) -> None:
        self._contributors = set()
        self._deadline = self._global_step = math.inf
        self._weight = 0
        self._is_scaled = False  # the only gradient so far is kept exactly
