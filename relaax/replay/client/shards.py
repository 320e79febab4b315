"""The replay servers, the shards of a table, as one process has them: links, registration and priority updates."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.backoff import Pauses
from relaax.replay import replay_pb2 as pb
from relaax.replay.interfaces import ReplayError, ReplayTraffic, ReplayUnauthenticated, ReplayUnavailable
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from relaax.replay.spec import TableDeclaration
from relaax.replay.wire import MAX_ITEMS, MAX_MESSAGE, declaration_to_message, to_bytes
from relaax.transport.channel import Target, authentication_trouble, is_unavailable, open_channel
from relaax.transport.shard_link import placement_error

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_STATE_SECONDS, _FIRST_STATE_SECONDS = 1.0, 0.05  # the second until sampling may begin
_POLL_PAUSE = 0.02
_FAILURES = (grpc.RpcError, grpc.FutureCancelledError, grpc.FutureTimeoutError)


@dataclass(frozen=True, slots=True)
class ShardState:
    """What was last heard of a shard's table."""

    size: int = 0
    total_priority: float = 0.0
    begun: bool = False
    inserts: int = 0
    samples: int = 0

    @classmethod
    def of(cls, message: pb.TableState) -> ShardState:
        """Return the state of a message."""
        return cls(message.size, message.total_priority, message.begun, message.inserts, message.samples)


class ShardLink:
    """The shard of this number, of so many. Thread-safe: writers and samplers of a process share it.

    It has a table as long as `incarnation` is not None. A shard that is away is asked again and again, without waiting
    for it, by each caller of `look`.
    """

    def __init__(
        self, target: Target, shard: int, shards: int, request: pb.ReplayServiceRegisterRequest, share_memory: bool
    ) -> None:
        self.target = target
        self.shard = shard
        self.incarnation: str | None = None
        self.earlier_incarnations: frozenset[str] = frozenset()
        """Lives of the table before this one, whose items and writers it still has."""
        self.offer: pb.ReplayMemoryOffer | None = None
        """The shard's offer of shared memory, if `share_memory` is true."""
        self.state = ShardState()
        self.traffic = ReplayTraffic()
        """What went in and out while the shard was there."""
        self.refusal: ReplayError | None = None
        """Why asking again will not help, if it was refused."""
        self.registration: Any = None
        """The future of the registration that is under way, if there is one."""
        self._shards = shards
        self._share_memory = share_memory
        self._request = request
        self._channel = open_channel(target, MAX_MESSAGE)
        self.stub = ReplayServiceStub(self._channel)
        self._lock = threading.Lock()
        self._state_request: Any = None  # a future of the table's state
        self._state_time = 0.0
        self._was_available = False  # whether it was there before
        self._pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._next_try = 0.0

    def poll_registration(self, timeout: float) -> None:
        """Ask for the table if there is none and it is time, or take what was answered; waits for nothing.

        `timeout`: seconds that the shard has to answer.
        """
        if self._lock.acquire(blocking=False):  # else another thread does
            try:
                if self.incarnation is None:
                    self._advance_registration(timeout)
            finally:
                self._lock.release()

    def poll_state(self, timeout: float) -> None:
        """Ask how the table stands if that was not heard lately, or take what was answered; waits for nothing."""
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
            self.on_sample_response(incarnation, future.result())
        except (grpc.RpcError, grpc.FutureCancelledError):
            self.mark_unreachable(incarnation, future)

    def on_sample_response(self, incarnation: str, answer: pb.SampleResponse) -> None:
        """Note the table's state, or that the table is not there any more."""
        if answer.incarnation_ended:
            self.mark_restarted(incarnation)
        else:
            self.update_state(incarnation, answer.state)

    def update_state(self, incarnation: str, state: pb.TableState) -> None:
        """Note the table's state."""
        with self._lock:
            if incarnation == self.incarnation:
                before, now = self.state, ShardState.of(state)
                # Answers may overtake each other.
                inserts, samples = max(before.inserts, now.inserts), max(before.samples, now.samples)
                self.state = replace(now, inserts=inserts, samples=samples)
                self.traffic += ReplayTraffic(inserts - before.inserts, samples - before.samples)
                self._state_time = time.monotonic()

    def mark_unreachable(self, incarnation: str, error: Any) -> None:
        """Note that a call over this table's life has failed: the shard is away."""
        self._disconnect(incarnation, f"is away: {error.details() or error.code().name}")

    def mark_restarted(self, incarnation: str) -> None:
        """Note that the table is not there any more: the shard has started again, or dropped it."""
        self._disconnect(incarnation, "has begun anew")

    def to_replay_error(self, error: grpc.RpcError) -> ReplayError:
        """Return what to raise for a call that was refused."""
        trouble = authentication_trouble(error, self.target)
        if trouble is not None:
            return ReplayUnauthenticated(trouble)
        return ReplayError(f"{self.target}: {error.details() or error.code().name}")

    def deregister(self, incarnation: str, writer: str, timeout: float) -> Any:
        """Deregister a writer, without waiting; return a future, or None."""
        with contextlib.suppress(ValueError):  # the channel is closed
            request = pb.ReplayServiceLeaveRequest(incarnation=incarnation, writer=writer)
            return self.stub.Leave.future(request, timeout=timeout)
        return None

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _disconnect(self, incarnation: str, why: str) -> None:
        with self._lock:
            if incarnation == self.incarnation:
                _log.warning("%s %s", self.target, why)
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
            # A server that was there before is away: that is found out without dialling it again.
            if not is_away(error) or (
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
        self.earlier_incarnations = frozenset(response.earlier_incarnations)
        self.incarnation = response.incarnation
        self.state = ShardState.of(response.state)
        self._state_time = now
        name, gigabytes = self._request.table.name, response.bytes / 1e9
        _log.info("%s holds %r: %d items, %.3g GB once it is full", self.target, name, self.state.size, gigabytes)


class ShardGroup:
    """The shards at `targets`, shard 0 first, each with its part of a table. Thread-safe.

    timeout: seconds that a shard has to answer. patience: seconds to wait until one is there. session, client,
    share_memory: as for `ReplayClient`.
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
        """Wait until a shard is there, and every other one has answered or failed once.

        Raises ReplayUnavailable after the bounded wait, and ReplayError.
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
        """Return the shards that are there, and look for the others. Raises ReplayError if one refuses for good."""
        self._poll_registrations()
        for link in self.links:
            if link.refusal is not None:
                raise link.refusal
        return [link for link in self.links if link.incarnation is not None]

    def unavailable_error(self) -> ReplayUnavailable:
        """Return the error that says that no shard was there for as long as patience lasts."""
        where = ", ".join(link.target.address for link in self.links)
        if len(self.links) == 1:
            return ReplayUnavailable(
                f"the replay server {where} could not be reached for {self.patience:g} s: start it"
            )
        return ReplayUnavailable(f"no replay server could be reached for {self.patience:g} s: start one of {where}")

    def pause(self) -> None:
        """Let a moment pass before the next look."""
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
    """The updates of one shard, in their order: one call at a time, and what comes meanwhile goes with the next one.

    Up to `MAX_ITEMS` are pending; beyond that the oldest are dropped, and counted. Thread-safe.
    """

    def __init__(self, link: ShardLink, timeout: float) -> None:
        self._link = link
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pending: list[_Update] = []
        self._call: Any = None
        self._sent = 0
        self.dropped = 0
        """Updates that were dropped here: the shard was too slow, or away."""

    def put(self, incarnation: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> None:
        """Send updates, now or with the next call."""
        with self._lock:
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
        """Begin the next call, if there is anything to send. Called with the lock held."""
        self._call = None
        if self._pending:
            incarnation = self._pending[0][0]
            together = [update for update in self._pending if update[0] == incarnation]
            self._pending = [update for update in self._pending if update[0] != incarnation]
            self._sent = sum(len(keys) for _, keys, _ in together)
            request = pb.UpdatePrioritiesRequest(
                incarnation=incarnation,
                keys=to_bytes(np.concatenate([keys for _, keys, _ in together])),
                priorities=to_bytes(np.concatenate([priorities for _, _, priorities in together])),
            )
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
