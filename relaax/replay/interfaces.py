"""Interfaces of replay memory that workers and learners use, for any transport and any number of shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.spec import Frames


class ReplayError(Exception):
    """The replay memory rejected a request; the message says why. Retrying does not help."""


class ReplayUnavailable(ReplayError):
    """No shard of the replay memory could be reached within the bounded wait."""


class ReplayUnauthenticated(ReplayError):
    """A replay server did not prove its identity, or it did not accept this client's credentials."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """A batch of B items of one writer, with the frames that they refer to.

    columns: [B, *shape] for each field, of its dtype. A stack of H frames is int64 [B, H]: the writer's numbers of
        single frames, oldest first; -1 is a frame of zeros.
    priorities: float64 [B]; None for the largest priority in the table.
    frames: uint8 [F, h, w, c], all frames that this and later insertions refer to, in the order of their numbers. They
        include frames that were sent before; these are sent again only if the shard has lost them. None if no field
        is a stack.
    first_frame: the number of `frames[0]`. Later insertions do not refer to frames with lower numbers.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    priorities: npt.NDArray[np.float64] | None = None
    frames: Frames | None = None
    first_frame: int = 0


class ReplayWriter(ABC):
    """A writer of the experience of some environments of a connection. Used by one thread.

    It writes to one shard at a time, and switches to another one if that shard is unavailable.
    """

    environments: npt.NDArray[np.int64]
    """Indices of the environments in the connection, int64 [E]."""

    @abstractmethod
    def insert(self, insertion: Insertion) -> None:
        """Insert items. Wait, for a bounded time, until the learners have caught up.

        The caller must not write to the arrays afterwards: the writer may send them later, or repeatedly. Each item is
        inserted once, however often it is sent. If a shard becomes unavailable before it answers, the items count as
        lost. Raises ReplayUnavailable if no shard is available for too long, and ReplayError.
        """

    def insert_at_end(self, insertion: Insertion) -> None:
        """Insert items at the latest when the replay memory is closed, once, without waiting for learners.

        The items are lost if the shard is not available then.
        """
        self.insert(insertion)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A batch of B items, drawn with replacement from all shards as if they were one table.

    columns: [B, *shape] for each field, of its dtype.
    probabilities: float64 [B], the probability of each item in one draw from all shards.
    size: number of items in all shards.
    ages: int64 [B], number of items that were inserted into the same shard after the item.
    places: int64 [B], the shard of each item.
    keys: uint64 [B], the key of each item in its shard.
    incarnations: the incarnation of each shard in the batch, by shard number.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    probabilities: npt.NDArray[np.float64]
    size: int
    ages: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    incarnations: Mapping[int, str]

    def importance_weights(self, beta: float) -> npt.NDArray[np.float32]:
        """Return (1 / (N P(i))) ** beta, divided by the largest of the batch, float32 [B] (Schaul et al. 2016, 3.4)."""
        weights = (self.size * self.probabilities) ** -beta
        normalized: npt.NDArray[np.float32] = (weights / weights.max()).astype(np.float32)
        return normalized


@dataclass(frozen=True, slots=True)
class ReplayTraffic:
    """Numbers of items that all clients inserted into a table and drew from it, over all shards."""

    inserts: int = 0
    samples: int = 0

    def __add__(self, other: ReplayTraffic) -> ReplayTraffic:
        return ReplayTraffic(self.inserts + other.inserts, self.samples + other.samples)


class ReplayMemory(ABC):
    """A table over all shards, as agents and learners use it.

    The algorithm declares the table (`relaax.algorithm_base.ReplayBase`). Used by one thread, except that a learner
    samples in a second thread.
    """

    @property
    @abstractmethod
    def writers(self) -> Sequence[ReplayWriter]:
        """The writers; each environment of the connection belongs to one of them. Empty for a learner."""

    @property
    @abstractmethod
    def traffic(self) -> ReplayTraffic:
        """The traffic since this client connected, according to the newest answers. Thread-safe."""

    @property
    def dropped_updates(self) -> int:
        """Number of priority updates that were not sent: their shard was too slow or unavailable. Thread-safe."""
        return 0

    @abstractmethod
    def sample(self, count: int, timeout: float) -> Sampled | None:
        """Draw `count` items; return None if the limiter did not allow it within `timeout` seconds.

        The limiter allows samples once `min_size` items were inserted, and limits their rate by `samples_per_insert`.
        Raises ReplayUnavailable if no shard is available for too long, and ReplayError.
        """

    @abstractmethod
    def update_priorities(self, sampled: Sampled, priorities: npt.NDArray[np.floating[Any]]) -> None:
        """Set the `priorities` [B] of drawn items, without waiting. Updates of evicted items are only counted."""

    @abstractmethod
    def close(self) -> None:
        """Deregister and disconnect. Never raises."""
