"""Go to a shard through memory as long as that works, and by gRPC otherwise."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from relaax.parameters.local_socket import NoSharedMemory, Trouble
from relaax.replay import replay_pb2 as pb
from relaax.replay.shard_link import ShardLink
from relaax.replay.shard_memory import ShardMemory
from relaax.replay.shared_layout import SampleArrays
from relaax.replay.spec import TableSpec

_log = logging.getLogger(__name__)
TRY_AGAIN_SECONDS = 30.0
LEAST_SECONDS = 0.5
"""Seconds that gRPC gets at least, where memory has taken all of a call's time."""


class MemoryWay:
    """The connection through memory of one writer or sampler to one shard, made when it is wanted.

    One that was lost is made again half a minute later, or with the shard's next offer. Used by one thread.
    """

    def __init__(self, link: ShardLink, spec: TableSpec) -> None:
        self._link = link
        self._spec = spec
        self._offer: pb.ReplayMemoryOffer | None = None
        self._memory: ShardMemory | None = None
        self._next_try = 0.0

    def memory(self) -> ShardMemory | None:
        """Return the connection; None if there is none now."""
        offer, now = self._link.offer, time.monotonic()
        if offer is not self._offer:
            self.close()
            self._offer, self._next_try = offer, 0.0
        if self._memory is None and offer is not None and now >= self._next_try:
            self._next_try = now + TRY_AGAIN_SECONDS
            try:
                self._memory = ShardMemory(offer, self._spec)
            except NoSharedMemory as why:
                if why.trouble in (Trouble.LASTING, Trouble.UNHEARD):
                    self._next_try = math.inf
                _log.debug("%s: by gRPC, memory is not shared: %s", self._link.target, why)
        return self._memory

    def lost(self, why: NoSharedMemory) -> None:
        """Note that the connection has ended."""
        _log.info("%s: by gRPC for now, memory is no longer shared: %s", self._link.target, why)
        self.close()
        self._next_try = time.monotonic() + TRY_AGAIN_SECONDS

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


class SampleQuestion:
    """A wish for items that is on its way, through memory or by gRPC."""

    def __init__(self, way: MemoryWay, link: ShardLink, request: pb.SampleRequest, timeout: float) -> None:
        self._way, self._link, self._request = way, link, request
        self._deadline = time.monotonic() + timeout
        self._future: Any = None
        self._memory = way.memory()
        try:
            if self._memory is None or not self._memory.ask_sample(request, timeout):
                self._by_grpc(timeout)
        except NoSharedMemory as why:
            way.lost(why)
            self._by_grpc(timeout)

    def result(self) -> tuple[pb.SampleResponse, SampleArrays | None]:
        """Wait for the answer, and return where what was drawn lies in memory, if it does.

        Raises grpc.RpcError, and grpc.FutureCancelledError where the call was cancelled.
        """
        if self._memory is not None:
            try:
                return self._memory.sampled()
            except NoSharedMemory as why:
                self._way.lost(why)
                self._by_grpc(max(LEAST_SECONDS, self._deadline - time.monotonic()))
        return self._future.result(), None

    @property
    def future(self) -> Any:
        """The call by gRPC, if there is one."""
        return self._future

    def _by_grpc(self, timeout: float) -> None:
        self._memory = None
        self._future = self._link.stub.Sample.future(self._request, timeout=timeout)
