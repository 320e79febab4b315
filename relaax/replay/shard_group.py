"""All shards of a replay memory, as one process has them."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence

import grpc

from relaax.parameters.channel import Target
from relaax.replay import replay_pb2 as pb
from relaax.replay.declaration import TableDeclaration
from relaax.replay.interfaces import ReplayUnavailable
from relaax.replay.messages import declaration_to_message
from relaax.replay.shard_link import ShardLink

_PAUSE = 0.02


class ShardGroup:
    """The shards at `targets`, shard 0 first, each with its part of a table. Thread-safe.

    timeout: seconds that a shard has to answer. patience: seconds to wait until one is there. share_memory: with those
    of this host.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        declaration: TableDeclaration,
        session: str,
        timeout: float,
        patience: float,
        share_memory: bool,
        client: str = "",
    ) -> None:
        """`session`, `client`: as for `ReplayClient`."""
        table = declaration_to_message(declaration)
        request = pb.ReplayServiceRegisterRequest(table=table, session=session, client=client)
        self.links = [
            ShardLink(target, shard, len(targets), request, share_memory) for shard, target in enumerate(targets)
        ]
        self.timeout = timeout
        self.patience = patience

    def connect(self) -> None:
        """Wait until a shard is there, and every other one has answered or failed once.

        Raises ReplayUnavailable after the bounded wait, and ReplayError.
        """
        deadline = time.monotonic() + self.patience
        while True:
            self._look()
            for link in self.links:
                if link.asked is not None:
                    with contextlib.suppress(grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError):
                        link.asked.result(self.timeout)
            if self.living():
                return
            if time.monotonic() >= deadline:
                raise self.unavailable()
            self.pause()

    def living(self) -> list[ShardLink]:
        """Return the shards that are there, and look for the others. Raises ReplayError if one refuses for good."""
        self._look()
        for link in self.links:
            if link.refusal is not None:
                raise link.refusal
        return [link for link in self.links if link.incarnation is not None]

    def unavailable(self) -> ReplayUnavailable:
        """Return the error that says that no shard was there for as long as patience lasts."""
        where = ", ".join(link.target.address for link in self.links)
        if len(self.links) == 1:
            return ReplayUnavailable(
                f"the replay server {where} could not be reached for {self.patience:g} s: start it"
            )
        return ReplayUnavailable(f"no replay server could be reached for {self.patience:g} s: start one of {where}")

    def pause(self) -> None:
        """Let a moment pass before the next look."""
        time.sleep(_PAUSE * random.uniform(0.5, 1.5))

    def close(self) -> None:
        """Close all channels."""
        for link in self.links:
            link.close()

    def _look(self) -> None:
        for link in self.links:
            link.look(self.timeout)
