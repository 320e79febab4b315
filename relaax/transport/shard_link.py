"""What the clients of sharded servers share: the place of a shard, and the choice between shared memory and gRPC."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from relaax.transport.channel import Target
from relaax.transport.local_socket import FailureKind, MemoryConnection, NoSharedMemory

_log = logging.getLogger(__name__)
RETRY_SECONDS = 30.0
"""Seconds until memory is tried again after it was lost."""
Connection = TypeVar("Connection", bound=MemoryConnection)


class PlacedResponse(Protocol):
    """The answer to a registration, with the position of the shard that answers."""

    shard: int
    shards: int


def placement_error(target: Target, response: PlacedResponse, shard: int, shards: int) -> str | None:
    """Return a sentence unless it is the shard that the order of addresses says."""
    if response.shards != shards:
        return (
            f"{target} is one of {response.shards} shards, and {shards} "
            f"{'address was' if shards == 1 else 'addresses were'} given: name them all, shard 0 first"
        )
    if response.shard != shard:
        return (
            f"{target} is shard {response.shard}, and it was named where shard {shard} belongs: name them in their "
            "order, shard 0 first"
        )
    return None


class MemoryTransport(Generic[Connection]):
    """The connection through memory to one server, made by `connect` from an offer. Used by one thread.

    One that was lost is made again half a minute later, or with the next offer.
    """

    def __init__(self, target: Target, connect: Callable[[Any], Connection]) -> None:
        self.connection: Connection | None = None
        self._target = target
        self._make = connect
        self._offer: Any = None
        self._next_try = 0.0
        self._was_lost = False

    def set_offer(self, offer: Any) -> None:
        """Connect by this offer from now on; None: by none."""
        if offer is not self._offer:
            self.close()
            self._offer, self._next_try, self._was_lost = offer, 0.0, False

    def connect(self) -> None:
        """Connect now, by the present offer. Raises NoSharedMemory."""
        self.close()
        self._next_try = time.monotonic() + RETRY_SECONDS
        self.connection = self._make(self._offer)

    def current(self) -> Connection | None:
        """Return the connection, made if it is time; None if there is none."""
        if self.connection is None and self._offer is not None and time.monotonic() >= self._next_try:
            try:
                self.connect()
            except NoSharedMemory as why:
                if why.kind in (FailureKind.PERMANENT, FailureKind.NO_LISTENER):
                    self._next_try = math.inf
                _log.debug("%s: by gRPC, memory is not shared: %s", self._target, why)
            else:
                if self._was_lost:
                    _log.info("%s: by shared memory again", self._target)
        return self.connection

    def mark_lost(self, connection: Connection, why: NoSharedMemory) -> None:
        """Note that a connection has ended."""
        if connection is self.connection:
            _log.info("%s: by gRPC for now, memory is no longer shared: %s", self._target, why)
            self.close()
            self._next_try, self._was_lost = time.monotonic() + RETRY_SECONDS, True

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class MemoryCall(Generic[Connection]):
    """A call that goes through memory as long as that works, and then by gRPC."""

    def __init__(
        self,
        transport: MemoryTransport[Connection],
        connection: Connection | None,
        ask: Callable[[Connection], bool],
        answer: Callable[[Connection], Any],
        by_grpc: Callable[[], Any],
    ) -> None:
        """Send it. `ask`: sends it through memory, and returns whether it fits there; `by_grpc`: returns a future."""
        self._transport, self._connection = transport, connection
        self._answer, self._by_grpc = answer, by_grpc
        self.future: Any = None
        """The call by gRPC, if there is one."""
        try:
            if connection is None or not ask(connection):
                self._connection, self.future = None, by_grpc()
        except NoSharedMemory as why:
            self._go_by_grpc(why)

    def result(self) -> Any:
        """Wait for the answer. Raises grpc.RpcError, and grpc.FutureCancelledError if the call was cancelled."""
        if self._connection is not None:
            try:
                return self._answer(self._connection)
            except NoSharedMemory as why:
                self._go_by_grpc(why)
        return self.future.result()

    def _go_by_grpc(self, why: NoSharedMemory) -> None:
        assert self._connection is not None
        self._transport.mark_lost(self._connection, why)
        self._connection, self.future = None, self._by_grpc()
