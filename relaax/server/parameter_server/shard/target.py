"""A shard's part of the target network: a copy of its parameters, renewed now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaax.algorithm_base.target_interval import TargetInterval
from relaax.optim.vector import Vector
from relaax.server.parameter_server.shard.state import Counters, TargetCopy

TARGET = "target"
"""Name of the vector in a pull, and of its array in a checkpoint."""
GENERATION = "target_generation"
"""Name of the generation in the description of a shard in a manifest."""

MAX_AHEAD = 8
"""Generations by which one message of a worker can advance another shard than shard 0."""


class TargetNetwork:
    """The newest copy, and when the next one is due. Not thread-safe.

    Shard 0 goes by its own counters: the generation grows by one for each multiple of the interval that they pass. The
    others copy when they hear of a newer generation, so all have the same numbers. `copy` is a snapshot of the
    parameters: nothing else is copied, and the memory of one that nobody has any more serves the next.
    """

    def __init__(self, interval: TargetInterval, parameters: Vector, *, leads: bool) -> None:
        """`leads`: this is shard 0."""
        self.interval = interval
        self._leads = leads
        self._more = 0
        self._copied_at = 0
        self.copy = TargetCopy(0, parameters.snapshot())

    def count(self, counters: Counters, parameters: Vector) -> None:
        """Copy the parameters if these counters of shard 0 have passed a multiple of the interval."""
        generation = _passed(self.interval, counters) + self._more
        if self._leads and generation > self.copy.generation:
            self.copy = TargetCopy(generation, parameters.snapshot())
            self._copied_at = self._counted(counters)

    def hear(self, generation: int, parameters: Vector) -> None:
        """Copy the parameters if shard 0 is said to have a newer generation. Shard 0 itself knows better.

        The generation may be false, and the next copy is due when the true one has passed it. So one message advances
        it by a few; a shard that is further behind advances again with the next message.
        """
        if not self._leads and generation > self.copy.generation:
            generation = min(generation, self.copy.generation + MAX_AHEAD)
            self.copy = TargetCopy(generation, parameters.snapshot())

    def restore(self, copy: TargetCopy, counters: Counters, parameters: Vector) -> None:
        """Continue from a checkpoint with these counters. `parameters` are overwritten, and are restored afterwards.

        The generation of the copy may be ahead of the counters, if the interval was shorter before: the next copy is
        due at the next multiple of the interval all the same.
        """
        parameters.assign(copy.vector)  # its snapshot lies in memory that workers can read
        self.copy = TargetCopy(copy.generation, parameters.snapshot())
        self._more = copy.generation - _passed(self.interval, counters)
        # When it was copied is not in the checkpoint: not before the last multiple of the interval.
        self._copied_at = _passed(self.interval, counters) * self.interval.length

    def age(self, counters: Counters) -> tuple[str, int] | None:
        """Return the interval's unit, and how many of it shard 0 has counted since the last copy; None elsewhere."""
        return (self.interval.unit, self._counted(counters) - self._copied_at) if self._leads else None

    def _counted(self, counters: Counters) -> int:
        return self.interval.counted(counters.frames, counters.version)


def restored_generation(
    shards: Sequence[Mapping[str, Any]], counters: Counters, interval: TargetInterval
) -> tuple[int, bool]:
    """Return the generation with which a checkpoint is continued, the same on every shard, and whether its parts hold
    one target network.

    `shards` are the manifest's descriptions of all shards, `counters` those that shard 0 continues with. Parts that
    were written between the copies of two shards, or without a target network, hold none: then it begins with the
    restored parameters.
    """
    stored = [shard.get(GENERATION) for shard in shards]
    known = [generation for generation in stored if generation is not None]
    return max([_passed(interval, counters), *known]), None not in stored and len(set(stored)) == 1


def _passed(interval: TargetInterval, counters: Counters) -> int:
    return interval.counted(counters.frames, counters.version) // interval.length
