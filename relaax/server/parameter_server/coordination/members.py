"""The shards that have joined shard 0."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc

from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc
from relaax.server.parameter_server.coordination.introduction import refusal
from relaax.server.parameter_server.coordination.member import Member, ShardLost

_log = logging.getLogger(__name__)


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
