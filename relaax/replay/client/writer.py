"""Put the experience of some environments into one shard of a replay memory, or into the next one while it is away."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.memory import MIN_GRPC_SECONDS, ReplayTransport, ShardMemory
from relaax.replay.client.shards import ShardGroup, ShardLink
from relaax.replay.interfaces import Insertion, ReplayError, ReplayWriter
from relaax.replay.spec import Frames, TableSpec
from relaax.replay.table.trees import checked_priorities
from relaax.replay.table.writers import checked_columns, checked_frames
from relaax.replay.wire import MAX_PENDING_INSERTS, Columns, to_bytes, to_messages
from relaax.transport.channel import is_away, never_arrived
from relaax.transport.local_socket import NoSharedMemory

_log = logging.getLogger(__name__)

LONGEST_WAIT = 10.0
"""Seconds that an insert waits for the learners; then it asks to be forced, and so do the next until learners catch up.
The server forces it if they are away."""
CALL_WAIT = 1.0
"""Seconds of them within one call."""
GRACE_SECONDS = 2.0
"""Seconds that a shard has to come back before another one is taken in its place."""
_SHORT_PAUSE = 0.05
MAX_RESYNCS = 8


class RemoteWriter(ReplayWriter):
    """Write to the shard `home` of a group. Used by one thread.

    A writer takes another name whenever it comes to a shard, and after each new life of the table: its numbers begin at
    1, and what may still be on its way under the former name can be taken for nothing else. If the shard had kept the
    table over a restart, it knows the name and the numbers, and the writer goes on with them.

    Through memory an insertion is sent ahead: while the shard takes it, its writer makes the next one ready. What was
    not taken is sent retries before anything else, as are those that were sent after it, which the shard refuses by their
    numbers. A shard that has to wait for its learners is sent nothing ahead.
    """

    def __init__(self, group: ShardGroup, home: ShardLink, spec: TableSpec, environments: Sequence[int]) -> None:
        self.environments = np.array(environments, np.int64)
        self.lost = 0
        """Items that may be there or not: their shard went away before it had answered."""
        self.overruns = 0
        """Items that were inserted without the learners having caught up."""
        self._group = group
        self._timeout = CALL_WAIT + group.timeout
        self._home = home
        self._spec = spec
        self._link: ShardLink | None = None
        self._transport = ReplayTransport(home, spec)
        self._lock = threading.Lock()
        self._may_pipeline = False  # whether the shard took the last insertion, and nobody had to wait
        self._in_flight: list[_PendingInsert] = []  # sent, and without an answer yet; the oldest first
        self._in_flight_memory: ShardMemory | None = None
        self._retries: list[_PendingInsert] = []  # was sent ahead, and not taken
        self._not_yet = False  # whether that is because learners have to catch up
        self._deregistration: Any = None  # a future that nobody holds is cancelled
        self._incarnation = ""
        self._name = ""
        self._sequence = 0
        self._next_frame: int | None = None  # the number of the frame after those that the shard has
        self._overrun = False  # whether the last insert was forced, as learners had not caught up
        self._is_closing = False

    def insert(self, insertion: Insertion) -> None:
        pending = self._to_pending(insertion)
        with self._lock:
            if self._link is not self._home and self._home.incarnation is not None:
                self._deliver_pending()
                self._switch(self._home, self._home.incarnation)
            if not self._pipeline(pending):
                self._deliver_pending()
                self._deliver(pending)

    def flush(self) -> None:
        """Wait until what was inserted so far is there, or has to wait for learners. By any thread.

        Raises ReplayUnavailable and ReplayError.
        """
        if self._in_flight and self._lock.acquire(blocking=False):  # else another one inserts meanwhile
            try:
                while self._in_flight:
                    self._receive_oldest()
                if not self._not_yet:
                    self._deliver_pending()
            finally:
                self._lock.release()

    def finish(self, seconds: float) -> None:
        """Hear what became of what was sent ahead; what was refused is forced, once, within `seconds`. Never raises."""
        if not self._lock.acquire(timeout=seconds):  # another thread still inserts
            return
        try:
            with contextlib.suppress(ReplayError):
                self._finish(seconds)
        finally:
            self._lock.release()

    def _finish(self, seconds: float) -> None:
        while self._in_flight:
            self._receive_oldest()
        retries, self._retries = self._retries, []
        self._is_closing, self._timeout = True, seconds
        for pending in retries:
            link = self._link
            there = link is not None and link.incarnation == self._incarnation
            if link is None or not there or not self._send_once(link, self._incarnation, pending):
                self._count_lost(pending)

    def _deliver_pending(self) -> None:
        """Wait until everything that was sent ahead is there. Raises ReplayUnavailable and ReplayError."""
        while self._in_flight:
            self._receive_oldest()
        while self._retries:
            self._deliver(self._retries.pop(0))

    def _pipeline(self, pending: _PendingInsert) -> bool:
        """Send an insertion through memory without waiting for it. Return whether that was done. Raises ReplayError."""
        self._group.available()
        if len(self._in_flight) >= MAX_PENDING_INSERTS:
            self._receive_oldest()
        link = self._link
        if not self._may_pipeline or link is None or link.incarnation != self._incarnation:
            return False
        memory = self._transport.now()
        if memory is None or (self._in_flight and memory is not self._in_flight_memory):
            return False
        now, before = time.monotonic(), self._next_frame
        head, frames = self._request(pending, now)
        try:
            if not memory.send_insert(head, pending.columns, frames, self._timeout, len(self._in_flight)):
                return False
        except NoSharedMemory as why:
            self._transport.lost(memory, why)
            return False
        pending.sent, pending.next_frame_before, pending.in_flight = now, before, True
        self._next_frame = pending.next_frame
        self._in_flight.append(pending)
        self._in_flight_memory = memory
        return True

    def _receive_oldest(self) -> None:
        """Take the answer to what was sent ahead first. If it was not taken, nothing is: all is to be sent retries.

        Raises ReplayError.
        """
        pending, memory, link, next_frame = self._in_flight[0], self._in_flight_memory, self._link, self._next_frame
        assert memory is not None and link is not None
        self._not_yet = False
        try:
            answer = memory.receive_insert()
            pending.in_flight = False
            if self._process_answer(link, pending, answer, pending.sent):
                self._in_flight.pop(0)
                self._next_frame = next_frame
                return
            self._not_yet = answer.outcome == pb.OUTCOME_NOT_YET
            for later in self._in_flight[1:]:  # its number came too early
                memory.receive_insert()
                later.in_flight = False
        except NoSharedMemory as why:
            self._transport.lost(memory, why)
        except grpc.RpcError as error:
            memory.close()
            if not is_away(error):
                self._in_flight, self._next_frame, self._may_pipeline = [], None, False
                raise link.to_replay_error(error) from None
        self._may_pipeline = False
        self._retries, self._in_flight = self._in_flight, []
        if self._next_frame == next_frame:
            self._next_frame = pending.next_frame_before

    def _deliver(self, pending: _PendingInsert) -> None:
        """Send an insertion until it is there, or is given up. Raises ReplayUnavailable and ReplayError."""
        done = False
        while not done:
            self._group.available()
            link = self._link
            incarnation = None if link is None else link.incarnation
            if link is None or incarnation is None:
                done = self._wait_for_shard(pending)
            else:
                done = self._send_once(link, incarnation, pending)

    def deregister(self) -> Any:
        """Say that this writer will insert no more, without waiting; return a future, or None."""
        self._transport.close()
        self._may_pipeline = False
        if self._link is None:
            return None
        return self._link.deregister(self._incarnation, self._name, self._group.timeout)

    def _to_pending(self, insertion: Insertion) -> _PendingInsert:
        """Return an insertion, checked, with what does not change until it has arrived. Raises ValueError."""
        count, columns = checked_columns(self._spec, insertion.columns)
        frames = checked_frames(self._spec, insertion.frames, insertion.first_frame)
        given = insertion.priorities
        return _PendingInsert(
            count=count,
            columns=columns,
            priorities=b"" if given is None else to_bytes(checked_priorities(given, count)),
            frames=frames,
            first_frame=insertion.first_frame,
            began=time.monotonic(),
        )

    def _switch(self, link: ShardLink, incarnation: str) -> None:
        """Begin to write to a table: under a new name, and with no frames there."""
        if self._link is not None and self._link is not link:
            self._deregistration = self.deregister()
            _log.info("experience of %d environments goes to %s now", len(self.environments), link.target)
        if self._link is not link:
            self._transport = ReplayTransport(link, self._spec)
        self._link, self._incarnation = link, incarnation
        self._name = uuid.uuid4().hex
        self._sequence, self._next_frame, self._overrun, self._may_pipeline = 0, None, False, False

    def _wait_for_shard(self, pending: _PendingInsert) -> bool:
        """Wait a moment for the shard, or take another one. Return whether there is nothing to be sent any more.

        Raises ReplayUnavailable if no shard is there for too long.
        """
        now = time.monotonic()
        pending.unavailable_since = pending.unavailable_since or now
        waited = now - pending.unavailable_since
        other = self._next_available()
        if other is not None and (self._link is None or waited >= GRACE_SECONDS):
            self._switch(*other)
            self._count_lost(pending)
            return pending.in_flight
        if waited >= self._group.patience:
            self._count_lost(pending)
            raise self._group.unavailable_error()
        self._group.pause()
        return False

    def _next_available(self) -> tuple[ShardLink, str] | None:
        """Return the first shard that is there, from `home` on, and the life of its table."""
        links = self._group.links
        for step in range(len(links)):
            link = links[(self._home.shard + step) % len(links)]
            incarnation = link.incarnation
            if incarnation is not None:
                return link, incarnation
        return None

    def _count_lost(self, pending: _PendingInsert) -> None:
        """Count items that may be there or not."""
        if pending.in_flight:
            self.lost += pending.count
            _log.warning("%d items were on their way to a shard that went away: they count as lost", pending.count)

    def _send_once(self, link: ShardLink, incarnation: str, pending: _PendingInsert) -> bool:
        """Send an insertion once. Return whether that is done. Raises ReplayError."""
        if incarnation != self._incarnation:
            if self._incarnation in link.earlier_incarnations:
                self._incarnation = incarnation
            else:
                pending.in_flight = False  # it went with the table's last life
                self._switch(link, incarnation)
        started = time.monotonic()
        try:
            answer = self._call(link, pending, started)
        except grpc.RpcError as error:
            if not is_away(error):
                raise link.to_replay_error(error) from None
            pending.unavailable_since = pending.unavailable_since or started
            pending.in_flight = pending.in_flight or not never_arrived(error)
            link.mark_unreachable(incarnation, error)
            return False
        pending.unavailable_since = None
        return self._process_answer(link, pending, answer, started)

    def _call(self, link: ShardLink, pending: _PendingInsert, now: float) -> pb.InsertResponse:
        """Send an insertion through memory, or by gRPC, and return the answer. Raises grpc.RpcError."""
        head, frames = self._request(pending, now)
        timeout = self._timeout
        memory, before = self._transport.now(), pending.in_flight
        try:
            if memory is not None and memory.send_insert(head, pending.columns, frames, timeout):
                pending.in_flight = True
                answer = memory.receive_insert()
                pending.in_flight = before
                return answer
        except NoSharedMemory as why:
            assert memory is not None
            self._transport.lost(memory, why)
            timeout = max(MIN_GRPC_SECONDS, now + timeout - time.monotonic())
        head.columns.extend(to_messages(pending.columns))
        head.frames = frames.tobytes()
        by_grpc: pb.InsertResponse = link.stub.Insert(head, timeout=timeout)
        return by_grpc

    def _request(self, pending: _PendingInsert, now: float) -> tuple[pb.InsertRequest, Frames]:
        """Return a request without its columns and frames, and the frames."""
        first, frames = pending.first_frame, pending.frames
        if self._next_frame is not None and self._next_frame >= first:
            frames = frames[self._next_frame - first :]
            first = self._next_frame
        head = pb.InsertRequest(
            incarnation=self._incarnation,
            writer=self._name,
            sequence=self._sequence + len(self._in_flight) + 1,
            count=pending.count,
            priorities=pending.priorities,
            first_frame=first,
            keep_from=pending.first_frame,
            wait=CALL_WAIT,
            force=self._overrun or now - pending.began >= LONGEST_WAIT,
            leaving=self._is_closing,
        )
        return head, frames

    def _process_answer(
        self, link: ShardLink, pending: _PendingInsert, answer: pb.InsertResponse, started: float
    ) -> bool:
        """Note what became of a request. Return whether its insertion is done. Raises ReplayError."""
        if answer.outcome in (pb.OUTCOME_DONE, pb.OUTCOME_DUPLICATE):
            self._sequence += 1
            self._next_frame = pending.next_frame
            self._overrun, self._may_pipeline = answer.overrun, not answer.overrun
            self.overruns += pending.count if answer.overrun else 0
            return True
        self._may_pipeline = False
        if answer.outcome == pb.OUTCOME_NOT_YET:
            if time.monotonic() - started < CALL_WAIT / 2:  # too many others wait there
                time.sleep(_SHORT_PAUSE * random.uniform(1.0, 3.0))
            return False
        pending.resyncs += 1
        if pending.resyncs > MAX_RESYNCS:
            raise ReplayError(f"{link.target} began anew {MAX_RESYNCS} times while one insert was sent to it")
        if answer.outcome == pb.OUTCOME_OUT_OF_STEP:
            self._sequence, self._next_frame = answer.expected - 1, None
        else:
            link.mark_restarted(self._incarnation)
        return False


@dataclass(slots=True)
class _PendingInsert:
    """One insertion on its way."""

    count: int
    columns: Columns
    priorities: bytes
    frames: Frames
    first_frame: int
    began: float
    unavailable_since: float | None = None
    """When the shard was heard of last, if it is away."""
    in_flight: bool = False
    """Whether the shard may have it, and has not said so."""
    sent: float = 0.0
    """When it was sent ahead."""
    next_frame_before: int | None = None
    """The number of the frame after those that the shard had then."""
    resyncs: int = 0
    """How often it was out of step, or the table gone."""

    @property
    def next_frame(self) -> int:
        """The number of the frame after its last one."""
        return self.first_frame + len(self.frames)
