"""The joined shards, from the point of view of shard 0: introductions, orders and answers."""

from __future__ import annotations

import logging
import os
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import grpc

from relaax.hosting.fingerprint import first_difference
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc
from relaax.server.parameter_server.shard.model import ShardPosition

_log = logging.getLogger(__name__)

HOLD = 2.0
"""Maximum seconds that updates wait for the barrier of a checkpoint. Then they resume without a checkpoint."""

PARAMETERS = 2**20
"""Maximum elements of a message between shards. With many workers, a shard's ledger is long."""


def introduction(position: ShardPosition, description: str, location: str) -> pb.Introduction:
    """Return this process's introduction. `location`: the location of checkpoints; empty if they are off."""
    if location and "://" not in location:
        location = os.path.realpath(location)
    return pb.Introduction(
        shard=position.index,
        shards=position.count,
        instance=uuid.uuid4().hex,
        description=description,
        location=location,
    )


def refusal(theirs: pb.Introduction, ours: pb.Introduction) -> str | None:
    """Return why a shard cannot join shard 0, whose introduction is `ours`; None if it can."""
    what = f"shard {theirs.shard} of {theirs.shards} cannot join"
    if theirs.shards != ours.shards:
        return f"{what}: shard 0 was started as one of {ours.shards}; start all shards with the same number"
    if not 1 <= theirs.shard < ours.shards:
        return f"{what}: its index must be from 1 to {ours.shards - 1}"
    try:
        difference = first_difference(theirs.description, ours.description, f"at shard {theirs.shard}", "at shard 0")
    except (ValueError, RecursionError):
        return f"{what}: its description is not JSON"
    if difference:
        return f"{what}: its configuration differs from shard 0: {difference}"
    if theirs.location != ours.location:
        first, other = (
            f"checkpoints in {one.location}" if one.location else "no checkpoints" for one in (ours, theirs)
        )
        return f"{what}: it keeps {other}, shard 0 keeps {first}; all shards need the same location"
    return None


class ShardLost(Exception):
    """The stream of a shard has ended, or the shard does not answer."""


class Member:
    """A shard that has joined: the orders to it, and its answers. Thread-safe."""

    def __init__(self, introduction: pb.Introduction) -> None:
        self.shard = introduction.shard
        self.instance = introduction.instance
        self._name = f"shard {introduction.shard} of {introduction.shards}"
        self._orders: queue.SimpleQueue[pb.JoinResponse | None] = queue.SimpleQueue()
        self._unanswered: dict[int, Future[pb.Answer]] = {}
        self._number = 0
        self._lost = False
        self.ended = threading.Event()
        """Set when its stream has ended."""
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._name

    def send_order(self, **what: Any) -> Future[pb.Answer]:
        """Send an order and return the future of its answer. It fails with ShardLost if the stream ends first."""
        future: Future[pb.Answer] = Future()
        with self._lock:
            if self._lost:
                future.set_exception(self._lost_error())
                return future
            self._number += 1
            self._unanswered[self._number] = future
            self._orders.put(pb.JoinResponse(order=self._number, **what))
        return future

    def _lost_error(self) -> ShardLost:
        return ShardLost(f"{self} is unavailable")

    def deliver(self, answer: pb.Answer) -> None:
        """Set the future of an answer. An answer without a pending order is ignored."""
        with self._lock:
            future = self._unanswered.pop(answer.order, None)
        if future is not None:
            future.set_result(answer)

    def orders(self) -> Iterator[pb.JoinResponse]:
        """Yield the orders to send until the stream ends."""
        while (order := self._orders.get()) is not None:
            yield order

    def disconnect(self) -> None:
        """End the stream and fail all pending orders."""
        with self._lock:
            self._lost = True
            unanswered, self._unanswered = self._unanswered, {}
        for future in unanswered.values():
            future.set_exception(self._lost_error())
        self._orders.put(None)


class Members(pb_grpc.CoordinationServiceServicer):
    """The shards that have joined, one per index. Thread-safe.

    `on_change` is called, from any thread, when a shard has joined or disconnected, or requests its release.
    """

    def __init__(self, ours: pb.Introduction, on_change: Callable[[], None]) -> None:
        self._ours = ours
        self._on_change = on_change
        self._members: dict[int, Member] = {}
        self._leaving: list[Member] = []
        self._changes = 0
        self._lock = threading.Lock()

    @property
    def changes(self) -> int:
        """Number of times that a shard has joined or disconnected."""
        return self._changes

    def missing(self) -> str | None:
        """Return a sentence that names the missing shards; None if all have joined."""
        with self._lock:
            missing = [str(shard) for shard in range(1, self._ours.shards) if shard not in self._members]
        if not missing:
            return None
        if len(missing) == 1:
            return f"shard {missing[0]} of {self._ours.shards} is unavailable: waiting for it"
        return f"shards {', '.join(missing)} of {self._ours.shards} are unavailable: waiting for them"

    def all(self) -> list[Member]:
        """Return the members, ordered by shard."""
        with self._lock:
            return [self._members[shard] for shard in sorted(self._members)]

    def pop_leaving(self) -> list[Member]:
        """Return the members that have requested their release since the last call."""
        with self._lock:
            leaving, self._leaving = self._leaving, []
            return leaving

    def send_orders(self, timeout: float, to: Sequence[Member] | None = None, **what: Any) -> list[pb.Answer]:
        """Send an order to all members, or to those in `to`, at the same time. Return their answers.

        Raises ShardLost as soon as a member disconnects, or if one has not answered after `timeout` seconds.
        """
        asked = {member.send_order(**what): member for member in (self.all() if to is None else to)}
        _, slow = futures.wait(asked, timeout, futures.FIRST_EXCEPTION)
        for future in asked:
            if future.done():
                future.result()
        if slow:
            raise ShardLost(f"{asked[slow.pop()]} does not answer within {timeout:g} s")
        return [future.result() for future in asked]

    def Join(self, request_iterator: Any, context: grpc.ServicerContext) -> Iterator[pb.JoinResponse]:  # noqa: N802
        theirs: pb.Introduction = next(request_iterator).introduction
        sentence = refusal(theirs, self._ours)
        if sentence is not None:
            _log.warning("%s", sentence)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)
        member = Member(theirs)
        if not context.add_callback(member.disconnect):
            return  # the stream has already ended
        self._admit(member, context)
        threading.Thread(target=self._listen, args=(member, request_iterator), daemon=True).start()
        try:
            yield from member.orders()
        finally:
            self._remove(member)

    def _admit(self, member: Member, context: grpc.ServicerContext) -> None:
        with self._lock:
            other = self._members.get(member.shard)
            taken = other is not None and other.instance != member.instance
            if not taken:
                self._members[member.shard] = member
                self._changes += 1
        if taken:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{member} has already joined from another process")
        if other is not None:
            other.disconnect()  # the shard noticed before shard 0 that the old stream broke
        _log.info("%s has joined shard 0", member)
        self._on_change()

    def _listen(self, member: Member, requests: Any) -> None:
        try:
            for request in requests:
                if request.HasField("answer"):
                    member.deliver(request.answer)
                elif request.HasField("leaving"):
                    with self._lock:
                        self._leaving.append(member)
                    self._on_change()
        except grpc.RpcError:
            pass  # the stream broke
        finally:
            member.disconnect()

    def _remove(self, member: Member) -> None:
        member.disconnect()
        member.ended.set()
        with self._lock:
            there = self._members.get(member.shard) is member
            if there:
                del self._members[member.shard]
                self._changes += 1
        if there:
            _log.warning("shard 0 lost the connection of %s", member)
            self._on_change()
