"""Shared parts of the clients of sharded servers: check of a shard's position, and shared memory or gRPC."""

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
"""Seconds between the loss of a shared-memory connection and the next attempt."""
Connection = TypeVar("Connection", bound=MemoryConnection)


class PlacedResponse(Protocol):
    """The answer to a registration, with the position of the shard."""

    shard: int
    shards: int


def placement_error(target: Target, response: PlacedResponse, shard: int, shards: int) -> str | None:
    """Return a sentence if the shard's position or the number of shards contradicts the list of addresses."""
    if response.shards != shards:
        return (
            f"{target} is one of {response.shards} shards, but {shards} "
            f"{'address was' if shards == 1 else 'addresses were'} given: name them all, shard 0 first"
        )
    if response.shard != shard:
        return (
            f"{target} is shard {response.shard}, but it is listed as shard {shard}: list the addresses in the order "
            "of the shards, shard 0 first"
        )
    return None


class MemoryTransport(Generic[Connection]):
    """The shared-memory connection to one server, made by `connect` from the server's offer. Used by one thread.

    After a loss it connects again `RETRY_SECONDS` later, or with the next offer.
    """

    def __init__(self, target: Target, connect: Callable[[Any], Connection]) -> None:
        self.connection: Connection | None = None
        self._target = target
        self._make = connect
        self._offer: Any = None
        self._next_try = 0.0
        self._was_lost = False

    def set_offer(self, offer: Any) -> None:
        """Use this offer for later connections. None: do not connect."""
        if offer is not self._offer:
            self.close()
            self._offer, self._next_try, self._was_lost = offer, 0.0, False

    def connect(self) -> None:
        """Connect now with the present offer. Raises NoSharedMemory."""
        self.close()
        self._next_try = time.monotonic() + RETRY_SECONDS
        self.connection = self._make(self._offer)

    def current(self) -> Connection | None:
        """Return the connection, or None. Connects first if an attempt is due."""
        if self.connection is None and self._offer is not None and time.monotonic() >= self._next_try:
            try:
                self.connect()
            except NoSharedMemory as why:
                if why.kind in (FailureKind.PERMANENT, FailureKind.NO_LISTENER):
                    self._next_try = math.inf
                _log.debug("%s: still by gRPC, memory cannot be shared: %s", self._target, why)
            else:
                if self._was_lost:
                    _log.info("%s: vectors are sent by shared memory again", self._target)
        return self.connection

    def mark_lost(self, connection: Connection, why: NoSharedMemory) -> None:
        """Record that a connection has ended, and use gRPC until the next attempt."""
        if connection is self.connection:
            _log.info("%s: vectors are sent by gRPC for now, memory is no longer shared: %s", self._target, why)
            self.close()
            self._next_try, self._was_lost = time.monotonic() + RETRY_SECONDS, True

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class MemoryCall(Generic[Connection]):
    """A pending call, by shared memory while that works, and then by gRPC."""

    def __init__(
        self,
        transport: MemoryTransport[Connection],
        connection: Connection | None,
        ask: Callable[[Connection], bool],
        answer: Callable[[Connection], Any],
        by_grpc: Callable[[], Any],
    ) -> None:
        """Send the call. `ask`: sends it by shared memory and returns whether it fits. `by_grpc`: returns a future."""
        self._transport, self._connection = transport, connection
        self._answer, self._by_grpc = answer, by_grpc
        self.future: Any = None
        """The call by gRPC, or None."""
        try:
            if connection is None or not ask(connection):
                self._connection, self.future = None, by_grpc()
        except NoSharedMemory as why:
            self._fall_back(why)

    def result(self) -> Any:
        """Wait for the answer. Raises grpc.RpcError, and grpc.FutureCancelledError if the call was cancelled."""
        if self._connection is not None:
            try:
                return self._answer(self._connection)
            except NoSharedMemory as why:
                self._fall_back(why)
        return self.future.result()

    def _fall_back(self, why: NoSharedMemory) -> None:
        assert self._connection is not None
        self._transport.mark_lost(self._connection, why)
        self._connection, self.future = None, self._by_grpc()
