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
from relaax.replay.client.memory import LEAST_SECONDS, ReplayWay, ShardMemory
from relaax.replay.client.shards import ShardGroup, ShardLink
from relaax.replay.interfaces import Insertion, ReplayError, ReplayWriter
from relaax.replay.spec import Frames, TableSpec
from relaax.replay.table.trees import checked_priorities
from relaax.replay.table.writers import checked_columns, checked_frames
from relaax.replay.wire import INSERTS_AHEAD, Columns, to_bytes, to_messages
from relaax.transport.channel import is_unavailable, was_never_sent
from relaax.transport.local_socket import NoSharedMemory

_log = logging.getLogger(__name__)

LONGEST_WAIT = 10.0
"""Seconds that an insert waits for the learners; then it asks to be forced, and so do the next until learners catch up.
The server forces it if they are away."""
CALL_WAIT = 1.0
"""Seconds of them within one call."""
GRACE = 2.0
"""Seconds that a shard has to come back before another one is taken in its place."""
_SHORT_PAUSE = 0.05
MAX_BEGINNINGS = 8


class RemoteWriter(ReplayWriter):
    """Write to the shard `home` of a group. Used by one thread.

    A writer takes another name whenever it comes to a shard, and after each new life of the table: its numbers begin at
    1, and what may still be on its way under the former name can be taken for nothing else. If the shard had kept the
    table over a restart, it knows the name and the numbers, and the writer goes on with them.

    Through memory an insertion is sent ahead: while the shard takes it, its writer makes the next one ready. What was
    not taken is sent again before anything else, as are those that were sent after it, which the shard refuses by their
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
        self._way = ReplayWay(home, spec)
        self._lock = threading.Lock()
        self._steady = False  # whether the shard took the last insertion, and nobody had to wait
        self._ahead: list[_Sending] = []  # sent, and without an answer yet; the oldest first
        self._ahead_by: ShardMemory | None = None
        self._again: list[_Sending] = []  # was sent ahead, and not taken
        self._not_yet = False  # whether that is because learners have to catch up
        self._goodbye: Any = None  # a future that nobody holds is cancelled
        self._incarnation = ""
        self._name = ""
        self._sequence = 0
        self._following: int | None = None  # the number of the frame after those that the shard has
        self._overrun = False  # whether the last insert was forced, as learners had not caught up
        self._leaving = False

    def insert(self, insertion: Insertion) -> None:
        sending = self._sending(insertion)
        with self._lock:
            if self._link is not self._home and self._home.incarnation is not None:
                self._settle()
                self._move(self._home, self._home.incarnation)
            if not self._send_ahead(sending):
                self._settle()
                self._deliver(sending)

    def hear(self) -> None:
        """Wait until what was inserted so far is there, or has to wait for learners. By any thread.

        Raises ReplayUnavailable and ReplayError.
        """
        if self._ahead and self._lock.acquire(blocking=False):  # else another one inserts meanwhile
            try:
                while self._ahead:
                    self._hear_oldest()
                if not self._not_yet:
                    self._settle()
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
        while self._ahead:
            self._hear_oldest()
        again, self._again = self._again, []
        self._leaving, self._timeout = True, seconds
        for sending in again:
            link = self._link
            there = link is not None and link.incarnation == self._incarnation
            if link is None or not there or not self._try(link, self._incarnation, sending):
                self._lose(sending)

    def _settle(self) -> None:
        """Wait until everything that was sent ahead is there. Raises ReplayUnavailable and ReplayError."""
        while self._ahead:
            self._hear_oldest()
        while self._again:
            self._deliver(self._again.pop(0))

    def _send_ahead(self, sending: _Sending) -> bool:
        """Send an insertion through memory without waiting for it. Return whether that was done. Raises ReplayError."""
        self._group.living()
        if len(self._ahead) >= INSERTS_AHEAD:
            self._hear_oldest()
        link = self._link
        if not self._steady or link is None or link.incarnation != self._incarnation:
            return False
        memory = self._way.current()
        if memory is None or (self._ahead and memory is not self._ahead_by):
            return False
        now, before = time.monotonic(), self._following
        head, frames = self._request(sending, now)
        try:
            if not memory.ask_insert(head, sending.columns, frames, self._timeout, len(self._ahead)):
                return False
        except NoSharedMemory as why:
            self._way.mark_lost(memory, why)
            return False
        sending.sent, sending.before, sending.in_flight = now, before, True
        self._following = sending.following
        self._ahead.append(sending)
        self._ahead_by = memory
        return True

    def _hear_oldest(self) -> None:
        """Take the answer to what was sent ahead first. If it was not taken, nothing is: all is to be sent again.

        Raises ReplayError.
        """
        sending, memory, link, following = self._ahead[0], self._ahead_by, self._link, self._following
        assert memory is not None and link is not None
        self._not_yet = False
        try:
            answer = memory.inserted()
            sending.in_flight = False
            if self._take(link, sending, answer, sending.sent):
                self._ahead.pop(0)
                self._following = following
                return
            self._not_yet = answer.outcome == pb.OUTCOME_NOT_YET
            for later in self._ahead[1:]:  # its number came too early
                memory.inserted()
                later.in_flight = False
        except NoSharedMemory as why:
            self._way.mark_lost(memory, why)
        except grpc.RpcError as error:
            memory.close()
            if not is_unavailable(error):
                self._ahead, self._following, self._steady = [], None, False
                raise link.error(error) from None
        self._steady = False
        self._again, self._ahead = self._ahead, []
        if self._following == following:
            self._following = sending.before

    def _deliver(self, sending: _Sending) -> None:
        """Send an insertion until it is there, or is given up. Raises ReplayUnavailable and ReplayError."""
        done = False
        while not done:
            self._group.living()
            link = self._link
            incarnation = None if link is None else link.incarnation
            if link is None or incarnation is None:
                done = self._wait_for_shard(sending)
            else:
                done = self._try(link, incarnation, sending)

    def leave(self) -> Any:
        """Say that this writer will insert no more, without waiting; return a future, or None."""
        self._way.close()
        self._steady = False
        if self._link is None:
            return None
        return self._link.leave(self._incarnation, self._name, self._group.timeout)

    def _sending(self, insertion: Insertion) -> _Sending:
        """Return an insertion, checked, with what does not change until it has arrived. Raises ValueError."""
        count, columns = checked_columns(self._spec, insertion.columns)
        frames = checked_frames(self._spec, insertion.frames, insertion.first_frame)
        given = insertion.priorities
        return _Sending(
            count=count,
            columns=columns,
            priorities=b"" if given is None else to_bytes(checked_priorities(given, count)),
            frames=frames,
            first_frame=insertion.first_frame,
            began=time.monotonic(),
        )

    def _move(self, link: ShardLink, incarnation: str) -> None:
        """Begin to write to a table: under a new name, and with no frames there."""
        if self._link is not None and self._link is not link:
            self._goodbye = self.leave()
            _log.info("experience of %d environments goes to %s now", len(self.environments), link.target)
        if self._link is not link:
            self._way = ReplayWay(link, self._spec)
        self._link, self._incarnation = link, incarnation
        self._name = uuid.uuid4().hex
        self._sequence, self._following, self._overrun, self._steady = 0, None, False, False

    def _wait_for_shard(self, sending: _Sending) -> bool:
        """Wait a moment for the shard, or take another one. Return whether there is nothing to be sent any more.

        Raises ReplayUnavailable if no shard is there for too long.
        """
        now = time.monotonic()
        sending.away_since = sending.away_since or now
        waited = now - sending.away_since
        other = self._next_living()
        if other is not None and (self._link is None or waited >= GRACE):
            self._move(*other)
            self._lose(sending)
            return sending.in_flight
        if waited >= self._group.patience:
            self._lose(sending)
            raise self._group.unavailable()
        self._group.pause()
        return False

    def _next_living(self) -> tuple[ShardLink, str] | None:
        """Return the first shard that is there, from `home` on, and the life of its table."""
        links = self._group.links
        for step in range(len(links)):
            link = links[(self._home.shard + step) % len(links)]
            incarnation = link.incarnation
            if incarnation is not None:
                return link, incarnation
        return None

    def _lose(self, sending: _Sending) -> None:
        """Count items that may be there or not."""
        if sending.in_flight:
            self.lost += sending.count
            _log.warning("%d items were on their way to a shard that went away: they count as lost", sending.count)

    def _try(self, link: ShardLink, incarnation: str, sending: _Sending) -> bool:
        """Send an insertion once. Return whether that is done. Raises ReplayError."""
        if incarnation != self._incarnation:
            if self._incarnation in link.earlier:
                self._incarnation = incarnation
            else:
                sending.in_flight = False  # it went with the table's last life
                self._move(link, incarnation)
        started = time.monotonic()
        try:
            answer = self._send(link, sending, started)
        except grpc.RpcError as error:
            if not is_unavailable(error):
                raise link.error(error) from None
            sending.away_since = sending.away_since or started
            sending.in_flight = sending.in_flight or not was_never_sent(error)
            link.lost(incarnation, error)
            return False
        sending.away_since = None
        return self._take(link, sending, answer, started)

    def _send(self, link: ShardLink, sending: _Sending, now: float) -> pb.InsertResponse:
        """Send an insertion through memory, or by gRPC, and return the answer. Raises grpc.RpcError."""
        head, frames = self._request(sending, now)
        timeout = self._timeout
        memory, before = self._way.current(), sending.in_flight
        try:
            if memory is not None and memory.ask_insert(head, sending.columns, frames, timeout):
                sending.in_flight = True
                answer = memory.inserted()
                sending.in_flight = before
                return answer
        except NoSharedMemory as why:
            assert memory is not None
            self._way.mark_lost(memory, why)
            timeout = max(LEAST_SECONDS, now + timeout - time.monotonic())
        head.columns.extend(to_messages(sending.columns))
        head.frames = frames.tobytes()
        by_grpc: pb.InsertResponse = link.stub.Insert(head, timeout=timeout)
        return by_grpc

    def _request(self, sending: _Sending, now: float) -> tuple[pb.InsertRequest, Frames]:
        """Return a request without its columns and frames, and the frames."""
        first, frames = sending.first_frame, sending.frames
        if self._following is not None and self._following >= first:
            frames = frames[self._following - first :]
            first = self._following
        head = pb.InsertRequest(
            incarnation=self._incarnation,
            writer=self._name,
            sequence=self._sequence + len(self._ahead) + 1,
            count=sending.count,
            priorities=sending.priorities,
            first_frame=first,
            keep_from=sending.first_frame,
            wait=CALL_WAIT,
            force=self._overrun or now - sending.began >= LONGEST_WAIT,
            leaving=self._leaving,
        )
        return head, frames

    def _take(self, link: ShardLink, sending: _Sending, answer: pb.InsertResponse, started: float) -> bool:
        """Note what became of a request. Return whether its insertion is done. Raises ReplayError."""
        if answer.outcome in (pb.OUTCOME_DONE, pb.OUTCOME_DUPLICATE):
            self._sequence += 1
            self._following = sending.following
            self._overrun, self._steady = answer.overrun, not answer.overrun
            self.overruns += sending.count if answer.overrun else 0
            return True
        self._steady = False
        if answer.outcome == pb.OUTCOME_NOT_YET:
            if time.monotonic() - started < CALL_WAIT / 2:  # too many others wait there
                time.sleep(_SHORT_PAUSE * random.uniform(1.0, 3.0))
            return False
        sending.beginnings += 1
        if sending.beginnings > MAX_BEGINNINGS:
            raise ReplayError(f"{link.target} began anew {MAX_BEGINNINGS} times while one insert was sent to it")
        if answer.outcome == pb.OUTCOME_OUT_OF_STEP:
            self._sequence, self._following = answer.expected - 1, None
        else:
            link.ended(self._incarnation)
        return False


@dataclass(slots=True)
class _Sending:
    """One insertion on its way."""

    count: int
    columns: Columns
    priorities: bytes
    frames: Frames
    first_frame: int
    began: float
    away_since: float | None = None
    """When the shard was heard of last, if it is away."""
    in_flight: bool = False
    """Whether the shard may have it, and has not said so."""
    sent: float = 0.0
    """When it was sent ahead."""
    before: int | None = None
    """The number of the frame after those that the shard had then."""
    beginnings: int = 0
    """How often it was out of step, or the table gone."""

    @property
    def following(self) -> int:
        """The number of the frame after its last one."""
        return self.first_frame + len(self.frames)
