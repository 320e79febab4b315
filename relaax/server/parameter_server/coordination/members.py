"""The shards that have joined shard 0: introductions, orders and answers."""

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

from relaax.algorithm_base import first_difference
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc
from relaax.server.parameter_server.shard.model import ShardPosition

_log = logging.getLogger(__name__)

# Seconds.
HOLD = 2.0
"""Maximum time updates wait for the barrier of a checkpoint; then they resume and the checkpoint is abandoned."""

PARAMETERS = 2**20
"""Elements that fit into the longest message between shards: with many workers a shard's ledger is long."""


def introduction(position: ShardPosition, description: str, location: str) -> pb.Introduction:
    """Return this process's introduction. `location`: of the store, for people; empty if no checkpoints are kept."""
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
    who = f"shard {theirs.shard} of {theirs.shards} cannot join"
    if theirs.shards != ours.shards:
        return f"{who}: shard 0 was started as one of {ours.shards}; give all of them the same number"
    if not 1 <= theirs.shard < ours.shards:
        return f"{who}: there are shards 0 to {ours.shards - 1}, and this is shard 0"
    try:
        difference = first_difference(theirs.description, ours.description, f"at shard {theirs.shard}", "at shard 0")
    except (ValueError, RecursionError):
        return f"{who}: its description is no JSON"
    if difference:
        return f"{who}: its configuration differs from shard 0: {difference}"
    if theirs.location != ours.location:
        first, other = (location or "no checkpoints" for location in (ours.location, theirs.location))
        return f"{who}: it keeps {_kept(other)}, shard 0 keeps {_kept(first)}; all shards need the same location"
    return None


def _kept(location: str) -> str:
    return location if location == "no checkpoints" else f"checkpoints in {location}"


class ShardLost(Exception):
    """The stream of a shard has ended."""


class Member:
    """Orders to a shard and its answers. Thread-safe."""

    def __init__(self, introduction: pb.Introduction) -> None:
        self.shard = introduction.shard
        self.instance = introduction.instance
        self._name = f"shard {introduction.shard} of {introduction.shards}"
        self._orders: queue.SimpleQueue[pb.JoinResponse | None] = queue.SimpleQueue()
        self._unanswered: dict[int, Future[pb.Answer]] = {}
        self._number = 0
        self._lost = False
        self.gone = threading.Event()
        """Set once its stream has ended."""
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._name

    def ask(self, **what: Any) -> Future[pb.Answer]:
        """Send an order and return its future answer, which fails with ShardLost if the stream ends first."""
        future: Future[pb.Answer] = Future()
        with self._lock:
            if self._lost:
                future.set_exception(ShardLost(f"{self} is away"))
                return future
            self._number += 1
            self._unanswered[self._number] = future
            self._orders.put(pb.JoinResponse(order=self._number, **what))
        return future

    def answered(self, answer: pb.Answer) -> None:
        """Deliver an answer; one to no pending order is ignored."""
        with self._lock:
            future = self._unanswered.pop(answer.order, None)
        if future is not None:
            future.set_result(answer)

    def orders(self) -> Iterator[pb.JoinResponse]:
        """Yield the orders to send, until the stream ends."""
        while (order := self._orders.get()) is not None:
            yield order

    def lose(self) -> None:
        """End the stream, and fail all pending orders."""
        with self._lock:
            self._lost = True
            unanswered, self._unanswered = self._unanswered, {}
        for future in unanswered.values():
            future.set_exception(ShardLost(f"{self} is away"))
        self._orders.put(None)


class Members(pb_grpc.CoordinationServiceServicer):
    """Let shards join, one per index, and keep track of the members. Thread-safe.

    `on_change` is called, from any thread, when a shard has joined, has gone, or wants to leave.
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
        """The number of times a shard has joined or gone."""
        return self._changes

    def missing(self) -> str | None:
        """Return a sentence that names the missing shards; None if all have joined."""
        with self._lock:
            away = [str(shard) for shard in range(1, self._ours.shards) if shard not in self._members]
        if not away:
            return None
        if len(away) == 1:
            return f"shard {away[0]} of {self._ours.shards} is away: waiting for it"
        return f"shards {', '.join(away)} of {self._ours.shards} are away: waiting for them"

    def all(self) -> list[Member]:
        """Return the members, ordered by shard."""
        with self._lock:
            return [self._members[shard] for shard in sorted(self._members)]

    def leaving(self) -> list[Member]:
        """Return the members that have asked to leave since the last call."""
        with self._lock:
            leaving, self._leaving = self._leaving, []
            return leaving

    def ask(self, timeout: float, to: Sequence[Member] | None = None, **what: Any) -> list[pb.Answer]:
        """Send an order to all members, or to those of `to`, at once, and return their answers.

        Raises ShardLost as soon as one of them goes, or if one has not answered after `timeout` seconds.
        """
        asked = {member.ask(**what): member for member in (self.all() if to is None else to)}
        _, slow = futures.wait(asked, timeout, futures.FIRST_EXCEPTION)
        for future in asked:
            if future.done():
                future.result()
        if slow:
            raise ShardLost(f"{asked[slow.pop()]} does not answer")
        return [future.result() for future in asked]

    def Join(self, request_iterator: Any, context: grpc.ServicerContext) -> Iterator[pb.JoinResponse]:  # noqa: N802
        member = Member(self._introduced(request_iterator, context))
        if not context.add_callback(member.lose):
            return  # the stream has ended already
        self._admit(member, context)
        threading.Thread(target=self._listen, args=(member, request_iterator), daemon=True).start()
        try:
            yield from member.orders()
        finally:
            self._remove(member)

    def _introduced(self, requests: Any, context: grpc.ServicerContext) -> pb.Introduction:
        theirs: pb.Introduction = next(requests).introduction
        sentence = refusal(theirs, self._ours)
        if sentence is not None:
            _log.warning("%s", sentence)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)
        return theirs

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
            other.lose()  # its old stream broke, and the shard noticed first
        _log.info("%s has joined", member)
        self._on_change()

    def _listen(self, member: Member, requests: Any) -> None:
        try:
            for request in requests:
                if request.HasField("answer"):
                    member.answered(request.answer)
                elif request.HasField("leaving"):
                    with self._lock:
                        self._leaving.append(member)
                    self._on_change()
        except grpc.RpcError:
            pass  # the stream broke
        finally:
            member.lose()

    def _remove(self, member: Member) -> None:
        member.lose()
        member.gone.set()
        with self._lock:
            there = self._members.get(member.shard) is member
            if there:
                del self._members[member.shard]
                self._changes += 1
        if there:
            _log.warning("%s has gone", member)
            self._on_change()
