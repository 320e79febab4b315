"""Insert into and sample from a replay server of the same host: messages over a Unix socket, arrays through memory."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.shards import ShardLink
from relaax.replay.spec import TableSpec
from relaax.replay.table.frame_store import Frames
from relaax.replay.wire import (
    INSERT_NUMBERS,
    INSERTS_AHEAD,
    MAX_MESSAGE,
    MOST_BATCHES,
    Columns,
    InsertLayout,
    SampleArrays,
    sample_arrays,
    sample_bytes,
)
from relaax.transport import segments
from relaax.transport.frames import ENDS, INSERT, SAMPLE, BrokenFrame, Frame
from relaax.transport.grpc_options import MESSAGE_OVERHEAD
from relaax.transport.local_socket import (
    CONNECT_SECONDS,
    OK,
    CallRefused,
    Introduction,
    NoSharedMemory,
    Trouble,
    connected,
    reason,
    sentence,
)
from relaax.transport.segments import FlatVector

_NUMBER_BYTES = 4


class ShardMemory:
    """One connection. It ends with the first thing that goes wrong: what was asked can be asked again by gRPC.

    Each sample that is in use has a segment of its own, to which the server does not write meanwhile. Inserts may be
    asked for before those before them are answered, `INSERTS_AHEAD` in all. Not thread-safe.
    """

    def __init__(self, offer: pb.ReplayMemoryOffer, spec: TableSpec) -> None:
        """Connect, for a table of this kind. Raises NoSharedMemory."""
        self._spec = spec
        self._batches: dict[int, FlatVector] = {}
        self._asked = 0  # questions that have no answer yet
        self._reading = False  # an answer that somebody was interrupted at may be there in part
        self._slot = 0  # of the next insert
        self._layout = InsertLayout(spec)
        self._count = 0
        introduction = Introduction(offer.name, offer.caller_proof, offer.server_proof)
        self._frames, inserts = connected(offer.socket, introduction, INSERT_NUMBERS, CONNECT_SECONDS)
        self._timeout = CONNECT_SECONDS
        self._inserts = inserts.data.cast("B")

    def ask_insert(
        self, head: pb.InsertRequest, columns: Columns, frames: Frames, timeout: float, ahead: int = 0
    ) -> bool:
        """Send items: `head` without its columns and frames, which are written to where the server reads them.

        ahead: inserts that were sent before and have no answer yet, less than `INSERTS_AHEAD`. Return whether it was
        sent: what is too long for memory is not. Raises NoSharedMemory.
        """
        length = self._layout.length(head.count, len(frames))
        message = head.SerializeToString()
        if length > MAX_MESSAGE or len(message) > MESSAGE_OVERHEAD:
            return False
        self._expect_answers(ahead)
        begin = self._slot * MAX_MESSAGE
        there, room = self._layout.arrays(head.count, self._inserts[begin : begin + length])
        for name, column in columns.items():
            there[name][...] = column
        room[...] = frames
        self._ask(Frame(INSERT, message, length, self._slot), timeout)
        self._slot = (self._slot + 1) % INSERTS_AHEAD
        return True

    def inserted(self) -> pb.InsertResponse:
        """Return what became of the first insert without an answer. Raises NoSharedMemory, and CallRefused."""
        answer: pb.InsertResponse = self._answer(pb.InsertResponse)[0]
        return answer

    def ask_sample(self, request: pb.SampleRequest, timeout: float) -> bool:
        """Ask for items. Return whether it was sent: without room for one more it is not. Raises NoSharedMemory."""
        needed = sample_bytes(self._spec, request.count)
        if needed > MAX_MESSAGE:
            return False
        self._expect_answers(0)
        free = [number for number in self._batches if sys.getrefcount(self._batches[number]) == _ALONE]
        segment = next((number for number in free if self._batches[number].nbytes >= needed), 0)
        if not segment and len(self._batches) - len(free) >= MOST_BATCHES:
            return False
        wanted = 0
        if segment:
            free = []
        else:  # parts of a batch differ in length: the next one shall fit, too
            wanted = sample_bytes(self._spec, 1 << (request.count - 1).bit_length())
        for number in free:
            del self._batches[number]
        self._count = request.count
        self._ask(Frame(SAMPLE, request.SerializeToString(), wanted, segment, free), timeout)
        return True

    def sampled(self) -> tuple[pb.SampleResponse, SampleArrays | None]:
        """Return the answer and, if something was drawn, where it lies, read-only. It stays as it is.

        Raises NoSharedMemory, and CallRefused.
        """
        message, frame, segment = self._answer(pb.SampleResponse)
        if not frame.vector:
            return message, None
        if segment is None or frame.vector > segment.nbytes:
            raise self._ended(f"segment {frame.segment} holds no sample of {frame.vector} bytes")
        try:
            return message, sample_arrays(self._spec, self._count, segment.data.cast("B")[: frame.vector])
        except ValueError as error:
            raise self._ended(str(error)) from None

    def close(self) -> None:
        """Close the socket. Memory is freed when no sample is in use."""
        self._frames.shut()
        with contextlib.suppress(OSError):
            self._frames.close()

    def _expect_answers(self, count: int) -> None:
        if self._asked != count or self._reading:  # somebody was interrupted while waiting for one
            raise self._ended("another question has no answer yet")

    def _ask(self, frame: Frame, timeout: float) -> None:
        self._asked += 1
        try:
            if timeout != self._timeout:
                self._frames.socket.settimeout(timeout)
                self._timeout = timeout
            self._frames.send(frame)
        except OSError as error:
            raise self._ended(reason(error)) from None

    def _answer(self, kind: Any) -> tuple[Any, Frame, FlatVector | None]:
        """Return a message, its frame, and the segment that the frame names."""
        self._expect_answers(self._asked)
        self._reading = True
        try:
            frame, descriptor = self._frames.receive()
        except (OSError, BrokenFrame) as error:
            raise self._ended(reason(error)) from None
        self._asked, self._reading = self._asked - 1, False
        try:
            if frame.kind == ENDS:
                raise self._ended(sentence(frame))
            if frame.kind != OK:
                raise CallRefused.by(frame)
            if descriptor is not None:
                size = os.fstat(descriptor).st_size // _NUMBER_BYTES
                self._batches[frame.segment] = segments.map_(descriptor, size, writable=False, at_once=False)
            return kind.FromString(frame.message), frame, self._batches.get(frame.segment)
        except (DecodeError, OSError, ValueError) as error:
            raise self._ended(reason(error)) from None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _ended(self, why: str) -> NoSharedMemory:
        self.close()
        return NoSharedMemory(why)


_probe = {0: np.empty(0)}
_ALONE = sys.getrefcount(_probe[0])
"""References to an array that only its dictionary knows, as Python counts them."""


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
