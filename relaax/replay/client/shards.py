"""Links of one process to the shards of a table: registration, state, and priority updates."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.backoff import Pauses
from relaax.replay import replay_pb2 as pb
from relaax.replay.interfaces import ReplayError, ReplayTraffic, ReplayUnauthenticated, ReplayUnavailable
from relaax.replay.spec import TableDeclaration
from relaax.replay.wire import CAN_PACK, MAX_ITEMS, MAX_MESSAGE, ReplayStub, declaration_to_message, to_bytes
from relaax.transport.channel import Target, authentication_trouble, is_unavailable, open_channel
from relaax.transport.shard_link import placement_error

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_STATE_SECONDS, _FIRST_STATE_SECONDS = 1.0, 0.05  # the second one until `min_size` is reached
_POLL_PAUSE = 0.02
_FAILURES = (grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError)


@dataclass(frozen=True, slots=True)
class ShardState:
    """The last known state of a shard's table."""

    size: int = 0
    total_priority: float = 0.0
    begun: bool = False
    inserts: int = 0
    samples: int = 0

    @classmethod
    def of(cls, message: pb.TableState) -> ShardState:
        """Return the state that a message describes."""
        return cls(message.size, message.total_priority, message.begun, message.inserts, message.samples)


class ShardLink:
    """The link to one shard. Thread-safe: the writers and samplers of a process share it.

    The table is registered while `incarnation` is not None. If the shard is unavailable, each call of
    `poll_registration` retries the registration without waiting.
    """

    def __init__(
        self, target: Target, shard: int, shards: int, request: pb.ReplayServiceRegisterRequest, share_memory: bool
    ) -> None:
        self.target = target
        self.shard = shard
        self.incarnation: str | None = None
        self.earlier_incarnations: frozenset[str] = frozenset()
        """Earlier incarnations of the table, whose items and writers it has restored."""
        self.offer: pb.ReplayMemoryOffer | None = None
        """The shard's offer of shared memory, if `share_memory` is true."""
        self.packed = False
        """Whether the arrays of inserts by gRPC are in one field."""
        self.state = ShardState()
        self.traffic = ReplayTraffic()
        """The traffic of the table while this link was registered."""
        self.refusal: ReplayError | None = None
        """The error, if the shard refused the registration permanently."""
        self.registration: Any = None
        """The future of the pending registration, if there is one."""
        self._shards = shards
        self._share_memory = share_memory
        self._request = request
        self._channel = open_channel(target, MAX_MESSAGE)
        self.stub = ReplayStub(self._channel)
        self._lock = threading.Lock()
        self._state_request: Any = None  # incarnation and future of a pending state request
        self._state_time = 0.0
        self._was_available = False  # whether it has answered a registration before
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._next_try = 0.0

    def poll_registration(self, timeout: float) -> None:
        """Advance the registration without waiting: send a request if one is due, or process the answer.

        timeout: seconds within which the shard must answer.
        """
        if self._lock.acquire(blocking=False):  # otherwise another thread does this
            try:
                if self.incarnation is None:
                    self._advance_registration(timeout)
            finally:
                self._lock.release()

    def poll_state(self, timeout: float) -> None:
        """Refresh `state` without waiting: send a request if one is due, or process the answer."""
        with self._lock:
            if self._state_request is None:
                often = _STATE_SECONDS if self.state.begun else _FIRST_STATE_SECONDS
                if self.incarnation is not None and time.monotonic() - self._state_time >= often:
                    request = pb.SampleRequest(incarnation=self.incarnation)
                    self._state_request = self.incarnation, self.stub.Sample.future(request, timeout=timeout)
                return
            incarnation, future = self._state_request
            if not future.done():
                return
            self._state_request = None
        try:
            self.on_sample_response(incarnation, future.result().message)
        except (grpc.RpcError, grpc.FutureCancelledError):
            self.mark_unreachable(incarnation, future)

    def on_sample_response(self, incarnation: str, answer: pb.SampleResponse) -> None:
        """Update the table's state, or record that the incarnation has ended."""
        if answer.incarnation_ended:
            self.mark_restarted(incarnation)
        else:
            self.update_state(incarnation, answer.state)

    def update_state(self, incarnation: str, state: pb.TableState) -> None:
        """Update `state` and `traffic`."""
        with self._lock:
            if incarnation == self.incarnation:
                before, now = self.state, ShardState.of(state)
                # Answers may arrive out of order.
                inserts, samples = max(before.inserts, now.inserts), max(before.samples, now.samples)
                self.state = replace(now, inserts=inserts, samples=samples)
                self.traffic += ReplayTraffic(inserts - before.inserts, samples - before.samples)
                self._state_time = time.monotonic()

    def mark_unreachable(self, incarnation: str, error: Any) -> None:
        """Record that a call for this incarnation failed because the shard is unreachable."""
        self._disconnect(incarnation, f"is unreachable: {error.details() or error.code().name}")

    def mark_restarted(self, incarnation: str) -> None:
        """Record that the shard restarted or dropped the table."""
        self._disconnect(incarnation, "restarted or dropped it")

    def to_replay_error(self, error: grpc.RpcError) -> ReplayError:
        """Return the error to raise for a rejected call."""
        trouble = authentication_trouble(error, self.target)
        if trouble is not None:
            return ReplayUnauthenticated(trouble)
        return ReplayError(f"{self.target}: {error.details() or error.code().name}")

    def deregister(self, incarnation: str, writer: str, timeout: float) -> Any:
        """Deregister a writer without waiting. Return a future, or None if the channel is closed."""
        with contextlib.suppress(ValueError):  # raised by a closed channel
            request = pb.ReplayServiceLeaveRequest(incarnation=incarnation, writer=writer)
            return self.stub.Leave.future(request, timeout=timeout)
        return None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _disconnect(self, incarnation: str, why: str) -> None:
        with self._lock:
            if incarnation == self.incarnation:
                _log.warning("lost the replay table of shard %d: %s %s", self.shard, self.target, why)
                self.incarnation = self.offer = None
                self.state = ShardState()
                self._pauses.reset()
                self._next_try = 0.0

    def _advance_registration(self, timeout: float) -> None:
        now = time.monotonic()
        if self.registration is None:
            if now >= self._next_try and self.refusal is None:
                self.registration = self.stub.Register.future(self._request, timeout=timeout)
            return
        if not self.registration.done():
            return
        future, self.registration = self.registration, None
        self._next_try = now + self._pauses.next()
        try:
            response: pb.ReplayServiceRegisterResponse = future.result()
        except grpc.RpcError as error:
            # If the server has answered before, only its availability can have changed, and `authentication_trouble`,
            # which connects to it, is not needed.
            if not is_unavailable(error) or (
                not self._was_available and authentication_trouble(error, self.target) is not None
            ):
                self.refusal = self.to_replay_error(error)
            return
        trouble = placement_error(self.target, response, self.shard, self._shards)
        if trouble is not None:
            self.refusal = ReplayError(trouble)
            return
        self._was_available = True
        if self._share_memory and response.HasField("shared_memory"):
            self.offer = response.shared_memory
        self.packed = response.packed and CAN_PACK
        self.earlier_incarnations = frozenset(response.earlier_incarnations)
        self.incarnation = response.incarnation
        self.state = ShardState.of(response.state)
        self._state_time = now
        name, gigabytes = self._request.table.name, response.bytes / 1e9
        _log.info(
            "registered the replay table %r at %s: %d items, %.3g GB when full",
            name,
            self.target,
            self.state.size,
            gigabytes,
        )


class ShardGroup:
    """The shards at `targets`, shard 0 first, each with its part of a table. Thread-safe.

    The arguments are those of `ReplayClient`.
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
        table = declaration_to_message(declaration)
        request = pb.ReplayServiceRegisterRequest(table=table, session=session, client=client)
        self.links = [
            ShardLink(target, shard, len(targets), request, share_memory) for shard, target in enumerate(targets)
        ]
        self.timeout = timeout
        self.patience = patience

    def connect(self) -> None:
        """Wait until a shard is available, and every other shard has answered or failed once.

        Raises ReplayUnavailable after `patience` seconds, and ReplayError.
        """
        deadline = time.monotonic() + self.patience
        while True:
            self._poll_registrations()
            for link in self.links:
                if link.registration is not None:
                    with contextlib.suppress(*_FAILURES):
                        link.registration.result(self.timeout)
            if self.available():
                return
            if time.monotonic() >= deadline:
                raise self.unavailable_error()
            self.pause()

    def available(self) -> list[ShardLink]:
        """Return the registered shards, and poll the others. Raises ReplayError if a shard refuses permanently."""
        self._poll_registrations()
        for link in self.links:
            if link.refusal is not None:
                raise link.refusal
        return [link for link in self.links if link.incarnation is not None]

    def unavailable_error(self) -> ReplayUnavailable:
        """Return the error to raise if no shard was available for `patience` seconds."""
        where = ", ".join(link.target.address for link in self.links)
        if len(self.links) == 1:
            return ReplayUnavailable(f"replay server {where} was unreachable for {self.patience:g} s: start it")
        return ReplayUnavailable(f"all replay servers were unreachable for {self.patience:g} s: start one of {where}")

    def pause(self) -> None:
        """Sleep until the next poll."""
        time.sleep(_POLL_PAUSE * random.uniform(0.5, 1.5))

    def close(self) -> None:
        """Close all channels."""
        for link in self.links:
            link.close()

    def _poll_registrations(self) -> None:
        for link in self.links:
            link.poll_registration(self.timeout)


_Update = tuple[str, npt.NDArray[np.uint64], npt.NDArray[np.float64]]


class PriorityUpdates:
    """The queue of priority updates of one shard, sent in order and one call at a time. Thread-safe.

    Updates that arrive during a call are sent with the next one. At most `MAX_ITEMS` updates are pending; beyond that
    the oldest are dropped and counted. `send`: sends updates without a call, by shared memory, or returns false.
    """

    def __init__(self, link: ShardLink, timeout: float, send: Callable[[pb.UpdatePrioritiesRequest], bool]) -> None:
        self._link = link
        self._timeout = timeout
        self._send = send
        self._lock = threading.Lock()
        self._pending: list[_Update] = []
        self._call: Any = None
        self._sent = 0
        self.dropped = 0
        """Number of updates that were dropped because the shard was too slow or unavailable."""

    def put(self, incarnation: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> None:
        """Send updates, immediately or with the next call."""
        with self._lock:
            if self._call is None and self._send(_to_request(incarnation, keys, priorities)):
                return
            self._pending.append((incarnation, keys, priorities))
            while sum(len(update[1]) for update in self._pending) > MAX_ITEMS and len(self._pending) > 1:
                self.dropped += len(self._pending.pop(0)[1])
            call = self._start_next_call() if self._call is None else None
        if call is not None:
            call.add_done_callback(self._on_call_done)

    def finish(self, seconds: float) -> None:
        """Wait for the call in flight, and drop pending updates."""
        with self._lock:
            self._pending.clear()
            call = self._call
        if call is not None:
            try:
                call.result(seconds)
            except _FAILURES:
                call.cancel()

    def _start_next_call(self) -> Any:
        """Start the next call, if updates are pending. Called with the lock held."""
        self._call = None
        if self._pending:
            incarnation = self._pending[0][0]
            together = [update for update in self._pending if update[0] == incarnation]
            self._pending = [update for update in self._pending if update[0] != incarnation]
            self._sent = sum(len(keys) for _, keys, _ in together)
            keys = np.concatenate([keys for _, keys, _ in together])
            request = _to_request(incarnation, keys, np.concatenate([priorities for _, _, priorities in together]))
            self._call = self._link.stub.UpdatePriorities.future(request, timeout=self._timeout)
        return self._call

    def _on_call_done(self, call: Any) -> None:
        with self._lock:
            if call.code() is not grpc.StatusCode.OK:
                self.dropped += self._sent + sum(len(keys) for _, keys, _ in self._pending)
                self._pending.clear()
            following = self._start_next_call()
        if following is not None:
            following.add_done_callback(self._on_call_done)


def _to_request(
    incarnation: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]
) -> pb.UpdatePrioritiesRequest:
    return pb.UpdatePrioritiesRequest(incarnation=incarnation, keys=to_bytes(keys), priorities=to_bytes(priorities))
