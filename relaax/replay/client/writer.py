"""Writing the experience of some environments to one shard; while it is unavailable, to another one."""

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
from relaax.replay.wire import MAX_PENDING_INSERTS, Columns, InsertLayout, to_bytes, to_messages
from relaax.transport.channel import is_unavailable, was_never_sent
from relaax.transport.local_socket import NoSharedMemory
from relaax.transport.long_messages import Carrier

_log = logging.getLogger(__name__)

LONGEST_WAIT = 10.0
"""Seconds for which an insert waits for the learners. After that, the writer asks the server to force this insert and
the following ones, until the learners have caught up. The server forces an insert only if no learner samples."""
CALL_WAIT = 1.0
"""Seconds for which one call waits until the limiter allows the insert."""
GRACE_SECONDS = 2.0
"""Seconds for which a shard may be unavailable before the writer switches to another one."""
_SHORT_PAUSE = 0.05
MAX_RESYNCS = 8
"""Number of times that an insert may find its shard restarted or out of step."""


class RemoteWriter(ReplayWriter):
    """A writer to the shard `home` of a group. Used by one thread.

    The writer chooses a new name for each shard and each incarnation of the table. Its sequence numbers then begin at
    1, and the shard cannot confuse them with inserts in flight under an earlier name. If the shard has restored the
    table after a restart, it still has the writer's name and sequence number, and the writer continues with them.

    Inserts through shared memory are pipelined: while the shard processes one insert, the writer prepares the next.
    If an insert was not accepted, the shard also rejects the following ones by their sequence numbers. The writer sends
    all of them again before a new insert. Inserts are not pipelined while the shard waits for its learners.
    """

    def __init__(self, group: ShardGroup, home: ShardLink, spec: TableSpec, environments: Sequence[int]) -> None:
        self.environments = np.array(environments, np.int64)
        self.lost = 0
        """Number of items that may or may not be stored: their shard became unavailable before it answered."""
        self.overruns = 0
        """Number of items that were inserted although the learners had not caught up."""
        self._group = group
        self._timeout = CALL_WAIT + group.timeout
        self._home = home
        self._spec = spec
        self._layout = InsertLayout(spec)
        self._link: ShardLink | None = None
        self._transport = ReplayTransport(home, spec)
        self._lock = threading.Lock()
        self._may_pipeline = False  # whether the shard accepted the last insert without waiting for learners
        self._in_flight: list[_PendingInsert] = []  # pipelined inserts without an answer, oldest first
        self._in_flight_memory: ShardMemory | None = None
        self._retries: list[_PendingInsert] = []  # pipelined inserts that were not accepted
        self._last: list[_PendingInsert] = []  # inserts to send in `finish`
        self._not_yet = False  # whether the shard did not accept them because the learners must catch up
        self._deregistration: Any = None  # kept because gRPC cancels a future without references
        self._incarnation = ""
        self._name = ""
        self._sequence = 0
        self._next_frame: int | None = None  # number of the first frame that the shard does not have
        self._overrun = False  # whether the last insert was forced
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

    def insert_at_end(self, insertion: Insertion) -> None:
        self._last.append(self._to_pending(insertion))

    def flush(self) -> None:
        """Wait for the answers to all pipelined inserts, and send rejected ones again. Any thread may call it.

        If the learners must catch up first, rejected inserts are not sent again. Return at once if another thread is
        inserting. Raises ReplayUnavailable and ReplayError.
        """
        if self._in_flight and self._lock.acquire(blocking=False):
            try:
                while self._in_flight:
                    self._receive_oldest()
                if not self._not_yet:
                    self._deliver_pending()
            finally:
                self._lock.release()

    def finish(self, seconds: float) -> None:
        """Wait for the answers to pipelined inserts, and send the last inserts. Never raises.

        Each insert that was not accepted is sent once more. The shard forces these inserts. `seconds` is the timeout of
        a request. If another thread is inserting for more than `seconds`, return without waiting for answers.
        """
        if not self._lock.acquire(timeout=seconds):  # another thread is inserting
            return
        try:
            with contextlib.suppress(ReplayError):
                self._finish(seconds)
        finally:
            self._lock.release()

    def _finish(self, seconds: float) -> None:
        while self._in_flight:
            self._receive_oldest()
        remaining, self._retries, self._last = [*self._retries, *self._last], [], []
        self._is_closing, self._timeout = True, seconds
        for pending in remaining:
            if self._link is None and (other := self._next_available()) is not None:
                self._switch(*other)
            link = self._link
            registered = link is not None and link.incarnation == self._incarnation
            if link is None or not registered or not self._send_once(link, self._incarnation, pending):
                self._count_lost(pending)

    def _deliver_pending(self) -> None:
        """Wait until all pipelined inserts are stored. Raises ReplayUnavailable and ReplayError."""
        while self._in_flight:
            self._receive_oldest()
        while self._retries:
            self._deliver(self._retries.pop(0))

    def _pipeline(self, pending: _PendingInsert) -> bool:
        """Send an insert through shared memory without waiting. Return whether it was sent. Raises ReplayError."""
        self._group.available()
        if len(self._in_flight) >= MAX_PENDING_INSERTS:
            self._receive_oldest()
        link = self._link
        if not self._may_pipeline or link is None or link.incarnation != self._incarnation:
            return False
        memory = self._transport.current()
        if memory is None or (self._in_flight and memory is not self._in_flight_memory):
            return False
        now, before = time.monotonic(), self._next_frame
        head, frames = self._request(pending, now)
        try:
            if not memory.send_insert(head, pending.columns, frames, self._timeout, len(self._in_flight)):
                return False
        except NoSharedMemory as why:
            self._transport.mark_lost(memory, why)
            return False
        pending.sent, pending.next_frame_before, pending.in_flight = now, before, True
        self._next_frame = pending.next_frame
        self._in_flight.append(pending)
        self._in_flight_memory = memory
        return True

    def _receive_oldest(self) -> None:
        """Wait for the answer to the oldest pipelined insert.

        If it was not accepted, move all pipelined inserts to the retries: the shard rejects the later ones as well.
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
            for later in self._in_flight[1:]:  # rejected, as its sequence number is too high
                memory.receive_insert()
                later.in_flight = False
        except NoSharedMemory as why:
            self._transport.mark_lost(memory, why)
        except grpc.RpcError as error:
            memory.close()
            if not is_unavailable(error):
                self._in_flight, self._next_frame, self._may_pipeline = [], None, False
                raise link.to_replay_error(error) from None
        self._may_pipeline = False
        self._retries, self._in_flight = self._in_flight, []
        if self._next_frame == next_frame:
            self._next_frame = pending.next_frame_before

    def _deliver(self, pending: _PendingInsert) -> None:
        """Send an insert until it is stored or counted as lost. Raises ReplayUnavailable and ReplayError."""
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
        """Deregister without waiting. Return a future, or None."""
        self._transport.close()
        self._may_pipeline = False
        if self._link is None:
            return None
        return self._link.deregister(self._incarnation, self._name, self._group.timeout)

    def _to_pending(self, insertion: Insertion) -> _PendingInsert:
        """Check an insertion; return it as a pending insert. Raises ValueError."""
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
        """Switch to a table, as a new writer without frames."""
        if self._link is not None and self._link is not link:
            self._deregistration = self.deregister()
            _log.info("moved the experience of %d environments to %s", len(self.environments), link.target)
        if self._link is not link:
            self._transport = ReplayTransport(link, self._spec)
        self._link, self._incarnation = link, incarnation
        self._name = uuid.uuid4().hex
        self._sequence, self._next_frame, self._overrun, self._may_pipeline = 0, None, False, False

    def _wait_for_shard(self, pending: _PendingInsert) -> bool:
        """Wait briefly for the shard, or switch to another one.

        Return true if the insert counts as lost and must not be sent again. Raises ReplayUnavailable if no shard is
        available for too long.
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
        """Return the first available shard, starting with `home`, and the incarnation of its table."""
        links = self._group.links
        for step in range(len(links)):
            link = links[(self._home.shard + step) % len(links)]
            incarnation = link.incarnation
            if incarnation is not None:
                return link, incarnation
        return None

    def _count_lost(self, pending: _PendingInsert) -> None:
        """Count the items as lost if the shard may have stored them."""
        if pending.in_flight:
            self.lost += pending.count
            _log.warning("%d items count as lost: their shard became unavailable before it answered", pending.count)

    def _send_once(self, link: ShardLink, incarnation: str, pending: _PendingInsert) -> bool:
        """Send an insert once. Return whether it is done. Raises ReplayError."""
        if incarnation != self._incarnation:
            if self._incarnation in link.earlier_incarnations:
                self._incarnation = incarnation
            else:
                pending.in_flight = False  # the table of the earlier incarnation is gone
                self._switch(link, incarnation)
        started = time.monotonic()
        try:
            answer = self._call(link, pending, started)
        except grpc.RpcError as error:
            if not is_unavailable(error):
                raise link.to_replay_error(error) from None
            pending.unavailable_since = pending.unavailable_since or started
            pending.in_flight = pending.in_flight or not was_never_sent(error)
            link.mark_unreachable(incarnation, error)
            return False
        pending.unavailable_since = None
        return self._process_answer(link, pending, answer, started)

    def _call(self, link: ShardLink, pending: _PendingInsert, now: float) -> pb.InsertResponse:
        """Send an insert through shared memory or by gRPC, and return the answer. Raises grpc.RpcError."""
        head, frames = self._request(pending, now)
        timeout = self._timeout
        memory, before = self._transport.current(), pending.in_flight
        try:
            if memory is not None and memory.send_insert(head, pending.columns, frames, timeout):
                pending.in_flight = True
                answer = memory.receive_insert()
                pending.in_flight = before
                return answer
        except NoSharedMemory as why:
            assert memory is not None
            self._transport.mark_lost(memory, why)
            timeout = max(MIN_GRPC_SECONDS, now + timeout - time.monotonic())
        carrier = self._carrier(link, head, pending.columns, frames)
        by_grpc: pb.InsertResponse = link.stub.Insert(carrier, timeout=timeout)
        return by_grpc

    def _carrier(
        self, link: ShardLink, head: pb.InsertRequest, columns: Columns, frames: Frames
    ) -> Carrier[pb.InsertRequest]:
        """Return the message of an insert by gRPC."""
        if not link.packed:
            head.columns.extend(to_messages(columns))
            head.frames = frames.tobytes()
            return Carrier(head)
        memory = np.empty(self._layout.length(head.count, len(frames)), np.uint8)
        packed, packed_frames = self._layout.arrays(head.count, memory.data)
        for name, column in columns.items():
            packed[name][...] = column
        packed_frames[...] = frames
        return Carrier(head, memory)

    def _request(self, pending: _PendingInsert, now: float) -> tuple[pb.InsertRequest, Frames]:
        """Return a request without columns and frames, and the frames that the shard does not have."""
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
        """Process the answer to an insert. Return whether the insert is done. Raises ReplayError."""
        if answer.outcome in (pb.OUTCOME_DONE, pb.OUTCOME_DUPLICATE):
            self._sequence += 1
            self._next_frame = pending.next_frame
            self._overrun, self._may_pipeline = answer.overrun, not answer.overrun
            self.overruns += pending.count if answer.overrun else 0
            return True
        self._may_pipeline = False
        if answer.outcome == pb.OUTCOME_NOT_YET:
            if time.monotonic() - started < CALL_WAIT / 2:  # the shard has too many waiting calls
                time.sleep(_SHORT_PAUSE * random.uniform(1.0, 3.0))
            return False
        pending.resyncs += 1
        if pending.resyncs > MAX_RESYNCS:
            raise ReplayError(
                f"{link.target} restarted or was out of step more than {MAX_RESYNCS} times during one insert: "
                "see its log"
            )
        if answer.outcome == pb.OUTCOME_OUT_OF_STEP:
            self._sequence, self._next_frame = answer.expected - 1, None
        else:
            link.mark_restarted(self._incarnation)
        return False


@dataclass(slots=True)
class _PendingInsert:
    """An insert that is not done."""

    count: int
    columns: Columns
    priorities: bytes
    frames: Frames
    first_frame: int
    began: float
    unavailable_since: float | None = None
    """The time since which the shard is unavailable, if it is."""
    in_flight: bool = False
    """Whether the shard may have stored it, although its answer is missing."""
    sent: float = 0.0
    """The time at which it was pipelined."""
    next_frame_before: int | None = None
    """The number of the first frame that the shard did not have before this insert was pipelined."""
    resyncs: int = 0
    """Number of times that it was out of step or the table was gone."""

    @property
    def next_frame(self) -> int:
        """The number of the frame after its last frame."""
        return self.first_frame + len(self.frames)
