"""A worker's or learner's client of all shards of a replay memory."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.replay.client.sampler import ShardSampler
from relaax.replay.client.shards import PriorityUpdates, ShardGroup
from relaax.replay.client.writer import RemoteWriter
from relaax.replay.interfaces import ReplayMemory, ReplayTraffic, ReplayWriter, Sampled
from relaax.replay.spec import TableDeclaration
from relaax.replay.table.trees import checked_priorities
from relaax.replay.wire import MAX_MESSAGE
from relaax.transport.channel import Target
from relaax.transport.process_resources import keep_freed_memory

_CLOSE_SECONDS = 2.0


class ReplayClient(ReplayMemory):
    """A client of the replay servers at `targets`, shard 0 first. A target that is a string has no TLS and no token.

    declaration: the table, over all shards.
    actors: the actor index of each environment of the connection; actor i writes to shard i mod the number of shards.
        Empty for a learner.
    session: the session that has a table of its own; empty for the shared table.
    client: the authenticated name of the session's client. The memory for sessions' tables is shared fairly among
        clients.
    seed: seed of the division of batches among the shards.
    timeout: seconds within which a shard must answer a call.
    patience: seconds to wait for the first available shard.
    share_memory: whether to use shared memory with shards on this host.
    ahead: whether the next items are requested when a batch is returned (see `ShardSampler`). For a learner: the next
        batches are drawn before the priorities of this one are updated.

    The constructor waits until a shard is available. Raises ReplayUnavailable after `patience` seconds, and
    ReplayError. Create it in the process that uses it: a gRPC channel does not survive a fork. One thread inserts and
    updates priorities, and another thread may sample.
    """

    def __init__(
        self,
        targets: Sequence[Target | str],
        declaration: TableDeclaration,
        *,
        actors: Sequence[int] = (),
        session: str = "",
        client: str = "",
        seed: int = 0,
        timeout: float = 5.0,
        patience: float = 60.0,
        share_memory: bool = True,
        ahead: bool = False,
    ) -> None:
        servers = [
            Target(target, service="replay server", keys="relaax-rlx-server.replay_server")
            if isinstance(target, str)
            else target
            for target in targets
        ]
        keep_freed_memory(MAX_MESSAGE)
        self._group = ShardGroup(servers, declaration, session, timeout, patience, share_memory, client)
        try:
            self._group.connect()
        except BaseException:
            self._group.close()
            raise
        shards = len(servers)
        of_shard = [[place for place, actor in enumerate(actors) if actor % shards == shard] for shard in range(shards)]
        self._writers = [
            RemoteWriter(self._group, link, declaration.spec, places)
            for link, places in zip(self._group.links, of_shard, strict=True)
            if places
        ]
        self._sampler = ShardSampler(self._group, declaration, seed, ahead=ahead)
        send = self._sampler.send_updates
        self._updates = [PriorityUpdates(link, timeout, partial(send, link.shard)) for link in self._group.links]
        self._session = session
        self._closed = False

    @property
    def writers(self) -> Sequence[ReplayWriter]:
        return self._writers

    @property
    def traffic(self) -> ReplayTraffic:
        return sum((link.traffic for link in self._group.links), ReplayTraffic())

    @property
    def lost(self) -> int:
        """Number of items that may or may not be stored: their shard became unavailable before it answered."""
        return sum(writer.lost for writer in self._writers)

    @property
    def overruns(self) -> int:
        """Number of items that were inserted although the learners had not caught up."""
        return sum(writer.overruns for writer in self._writers)

    @property
    def dropped_updates(self) -> int:
        return sum(updates.dropped for updates in self._updates)

    def sample(self, count: int, timeout: float) -> Sampled | None:
        for writer in self._writers:
            writer.flush()  # so that the sample can contain all items that this client has inserted
        return self._sampler.sample(count, timeout)

    def update_priorities(self, sampled: Sampled, priorities: npt.NDArray[np.floating[Any]]) -> None:
        numbers = checked_priorities(priorities, len(sampled.keys))
        for shard, incarnation in sampled.incarnations.items():
            of_shard = sampled.places == shard
            self._updates[shard].put(incarnation, sampled.keys[of_shard], numbers[of_shard])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for updates in self._updates:
            updates.finish(_CLOSE_SECONDS)
        for writer in self._writers:
            writer.finish(_CLOSE_SECONDS)
        answers = [writer.deregister() for writer in self._writers]
        if self._session:  # so that the session's tables count as ended, even if they had no writer
            for link in self._group.links:
                if link.incarnation is not None:
                    answers.append(link.deregister(link.incarnation, uuid.uuid4().hex, _CLOSE_SECONDS))
        for answer in answers:
            if answer is not None:
                with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError):
                    answer.result(_CLOSE_SECONDS)
        self._sampler.close()
        self._group.close()
