"""The interfaces of a worker and of a learner to replay memory, whatever the transport and however many the shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay.spec import Frames


class ReplayError(Exception):
    """The replay memory refused, with a sentence that says why. Retrying will not help."""


class ReplayUnavailable(ReplayError):
    """No shard of the replay memory could be reached within the bounded wait."""


class ReplayUnauthenticated(ReplayError):
    """A replay server did not prove its identity, or this side did not prove that it may connect."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Items of one writer, B at once, and the frames that they name.

    columns: [B, *shape] for each field, of its dtype. For a stack of H frames int64 [B, H], the writer's numbers of
        single frames, oldest first; -1 is a frame of zeros.
    priorities: float64 [B]; None for the largest that an item had before.
    frames: uint8 [F, h, w, c], all frames that the writer may still name, in the order of their numbers, those already
        sent among them: only what follows those is sent, unless the shard has begun anew. None without stacks.
    first_frame: the number of the first of them; later insertions name none before it.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    priorities: npt.NDArray[np.float64] | None = None
    frames: Frames | None = None
    first_frame: int = 0


class ReplayWriter(ABC):
    """Where some environments of a connection put their experience: one shard, which may change. Used by one thread."""

    environments: npt.NDArray[np.int64]
    """The environments, by their place in the connection, int64 [E]."""

    @abstractmethod
    def insert(self, insertion: Insertion) -> None:
        """Send items. Waits, for a bounded time, where the learners have to catch up.

        The arrays are the writer's from then on: it may send them later, or once more, and nobody writes to them.
        Each item is there once, however often it had to be sent; items are lost, and counted, if their shard goes away
        in that moment. Raises ReplayUnavailable if no shard is there for too long, and ReplayError.
        """


@dataclass(frozen=True, slots=True)
class Sampled:
    """Items drawn with replacement, from all shards as if they were one table. B of them.

    columns: [B, *shape] for each field, of its dtype.
    probabilities: float64 [B], of each to be drawn, over all shards.
    size: how many items there are in all shards.
    ages: int64 [B], how many items its shard has taken since.
    places: int64 [B], the shard of each; keys: uint64 [B], its key there; incarnations: of the shards that were drawn
        from, by their number.
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
    """Items that went into a table and that were drawn from it, over all shards and by everybody."""

    inserts: int = 0
    samples: int = 0

    def __add__(self, other: ReplayTraffic) -> ReplayTraffic:
        return ReplayTraffic(self.inserts + other.inserts, self.samples + other.samples)


class ReplayMemory(ABC):
    """A table as an agent or a learner has it, over all shards. Used by one thread; a learner samples ahead in another.

    `tables` are declared by the algorithm (`relaax.algorithm_base.ReplayBase`); one is meant where none is named.
    """

    @property
    @abstractmethod
    def writers(self) -> Sequence[ReplayWriter]:
        """The writers of a connection's environments, each environment in one of them. None of a learner's."""

    @property
    @abstractmethod
    def traffic(self) -> ReplayTraffic:
        """What has gone in and out since this one came, as far as it has heard. For any thread."""

    @property
    def dropped_updates(self) -> int:
        """New priorities that were not sent: their shard was too slow, or away. For any thread."""
        return 0

    @abstractmethod
    def sample(self, count: int, timeout: float) -> Sampled | None:
        """Draw `count` items; None if that was not allowed for `timeout` seconds.

        It is allowed once there are `min_size` items, and as often as `samples_per_insert` says. Raises
        ReplayUnavailable if no shard is there for too long, and ReplayError.
        """

    @abstractmethod
    def update_priorities(self, sampled: Sampled, priorities: npt.NDArray[np.floating[Any]]) -> None:
        """Give what was drawn new priorities [B]. Does not wait; of what is gone meanwhile, it is only counted."""

    @abstractmethod
    def close(self) -> None:
        """Say goodbye. Never raises."""
