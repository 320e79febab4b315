"""A shard's part of the target network, renewed at intervals: a copy of the parameters, or their moving average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaax.algorithm_base.declarations import TargetInterval
from relaax.optim.vector import FlatVector, Vector
from relaax.server.parameter_server.shard.state import Counters, TargetCopy

TARGET = "target"
"""Name of the vector in a pull, and of its array in a checkpoint."""
GENERATION = "target_generation"
"""Name of the generation in the description of a shard in a manifest."""

MAX_AHEAD = 8
"""Maximum generations by which one message of a worker advances a shard other than shard 0."""


class TargetNetwork:
    """The newest target network, and the schedule of its next renewal. Not thread-safe.

    On shard 0, the generation increases by one for each multiple of the interval that its counters pass. The other
    shards copy when they receive a newer generation, so the generations of all shards agree. If the target network is
    soft (`TargetInterval.tau` below 1), each shard counts its own updates instead, because a part that misses a renewal
    differs by at most τ of a distance. `copy` is immutable. The memory of a copy without readers is reused.
    """

    def __init__(self, interval: TargetInterval, parameters: Vector, *, leads: bool) -> None:
        """`leads`: whether this is shard 0."""
        self.interval = interval
        self._leads = leads
        self._counts = leads or interval.is_soft
        self._offset = 0  # generations beyond those that the counters have passed
        self._copied_at = 0
        self.copy = TargetCopy(0, parameters.snapshot())
        self._renewed(parameters)  # compiles the kernel before the first push

    def update(self, counters: Counters, parameters: Vector) -> None:
        """Renew the target network if these counters have passed a multiple of the interval.

        No effect on shards other than 0 unless it is soft.
        """
        generation = _passed(self.interval, counters) + self._offset
        if self._counts and generation > self.copy.generation:
            self.copy = TargetCopy(generation, self._renewed(parameters))
            self._copied_at = self._counted(counters)

    def advance_to(self, generation: int, parameters: Vector) -> None:
        """Copy the parameters if this generation of shard 0, reported by a worker, is newer.

        No effect on shard 0, and on a soft target network.

        A worker may report a false generation, and then the next copy is due only after the true generation has passed
        it. Therefore one message advances the generation by at most `MAX_AHEAD`. If a shard is further behind, the next
        message advances it again.
        """
        if not self._counts and generation > self.copy.generation:
            generation = min(generation, self.copy.generation + MAX_AHEAD)
            self.copy = TargetCopy(generation, parameters.snapshot())

    def restore(self, copy: TargetCopy, counters: Counters, parameters: Vector) -> None:
        """Restore the copy of a checkpoint with these counters. `parameters` are overwritten; restore them afterwards.

        If the interval was shorter before, the copy's generation may be ahead of the counters. The next copy is due at
        the next multiple of the interval in any case.
        """
        parameters.assign(copy.vector)  # so that the snapshot is in memory that workers can read
        self.copy = TargetCopy(copy.generation, parameters.snapshot())
        self._offset = copy.generation - _passed(self.interval, counters)
        # The checkpoint does not contain the time of the copy: assume the last multiple of the interval.
        self._copied_at = _passed(self.interval, counters) * self.interval.length

    def age(self, counters: Counters) -> tuple[str, int] | None:
        """Return the interval's unit and shard 0's count of it since the last renewal; None on other shards."""
        return (self.interval.unit, self._counted(counters) - self._copied_at) if self._leads else None

    def _renewed(self, parameters: Vector) -> FlatVector:
        if self.interval.is_soft:
            return parameters.blended(self.copy.vector, self.interval.tau)
        return parameters.snapshot()

    def _counted(self, counters: Counters) -> int:
        return self.interval.counted(counters.frames, counters.version)


def restored_generation(
    shards: Sequence[Mapping[str, Any]], counters: Counters, interval: TargetInterval
) -> tuple[int, bool]:
    """Return the restored generation, the same on every shard, and whether the parts have one complete target network.

    `shards` are the manifest's descriptions of all shards, `counters` the restored counters of shard 0. If one shard
    had copied its parameters and another had not, or a part has no target network, the target network is incomplete.
    Then it is replaced by a copy of the restored parameters. The parts of a soft target network may be some updates
    apart.
    """
    stored = [shard.get(GENERATION) for shard in shards]
    known = [generation for generation in stored if generation is not None]
    agree = None not in stored and (interval.is_soft or len(set(stored)) == 1)
    return max([_passed(interval, counters), *known]), agree


def _passed(interval: TargetInterval, counters: Counters) -> int:
    return interval.counted(counters.frames, counters.version) // interval.length
