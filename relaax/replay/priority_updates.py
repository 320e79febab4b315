"""Send new priorities to a shard without waiting for it."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.shard_link import ShardLink
from relaax.replay.wire import MAX_ITEMS, to_bytes

_Update = tuple[str, npt.NDArray[np.uint64], npt.NDArray[np.float64]]


class PriorityUpdates:
    """The updates of one shard, in their order: one call at a time, and what comes meanwhile goes with the next one.

    Up to `MAX_ITEMS` wait; beyond that the oldest are dropped, and counted. Thread-safe.
    """

    def __init__(self, link: ShardLink, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._lock = threading.Lock()
        self._waiting: list[_Update] = []
        self._call: Any = None
        self._sent = 0
        self.dropped = 0
        """Updates that were dropped here: the shard was too slow, or away."""

    def put(self, incarnation: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> None:
        """Send updates, now or with the next call."""
        with self._lock:
            self._waiting.append((incarnation, keys, priorities))
            while sum(len(update[1]) for update in self._waiting) > MAX_ITEMS and len(self._waiting) > 1:
                self.dropped += len(self._waiting.pop(0)[1])
            call = self._next() if self._call is None else None
        self._watch(call)

    def finish(self, seconds: float) -> None:
        """Wait for the call that is under way, and drop what waits."""
        with self._lock:
            self._waiting.clear()
            call = self._call
        if call is not None:
            try:
                call.result(seconds)
            except (grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError):
                call.cancel()

    def _next(self) -> Any:
        """Begin the next call, if there is anything to send. Called with the lock held."""
        if not self._waiting:
            self._call = None
            return None
        incarnation = self._waiting[0][0]
        together = [update for update in self._waiting if update[0] == incarnation]
        self._waiting = [update for update in self._waiting if update[0] != incarnation]
        self._sent = sum(len(keys) for _, keys, _ in together)
        request = pb.UpdatePrioritiesRequest(
            incarnation=incarnation,
            keys=to_bytes(np.concatenate([keys for _, keys, _ in together])),
            priorities=to_bytes(np.concatenate([priorities for _, _, priorities in together])),
        )
        self._call = self._link.stub.UpdatePriorities.future(request, timeout=self._timeout)
        return self._call

    def _watch(self, call: Any) -> None:
        if call is not None:
            call.add_done_callback(self._done)

    def _done(self, call: Any) -> None:
        with self._lock:
            if call.code() is not grpc.StatusCode.OK:
                self.dropped += self._sent + sum(len(keys) for _, keys, _ in self._waiting)
                self._waiting.clear()
            following = self._next()
        self._watch(following)
