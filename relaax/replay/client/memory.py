"""Insert into and sample from a replay server of the same host: messages over a Unix socket, arrays through memory."""

from __future__ import annotations

import time

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.shards import ShardLink
from relaax.replay.spec import Frames, TableSpec
from relaax.replay.wire import (
    INSERT_NUMBERS,
    MAX_BATCHES,
    MAX_MESSAGE,
    MAX_PENDING_INSERTS,
    Columns,
    InsertLayout,
    SampleArrays,
    SampleLayout,
)
from relaax.transport.frames import INSERT, SAMPLE, Frame
from relaax.transport.grpc_options import MESSAGE_OVERHEAD
from relaax.transport.local_socket import Introduction, MemoryConnection
from relaax.transport.shard_link import MemoryCall, MemoryTransport

MIN_GRPC_SECONDS = 0.5
"""Seconds that gRPC gets at least, where memory has taken all of a call's time."""


class ShardMemory(MemoryConnection):
    """A connection of one writer or sampler to one shard.

    Each sample that is in use has a segment of its own, to which the server does not write meanwhile. Inserts may be
    asked for before those before them are answered, `MAX_PENDING_INSERTS` in all.
    """

    _at_once = False

    def __init__(self, offer: pb.ReplayMemoryOffer, spec: TableSpec) -> None:
        """Connect, for a table of this kind. Raises NoSharedMemory."""
        super().__init__(offer.socket, Introduction(offer.name, offer.caller_proof, offer.server_proof), INSERT_NUMBERS)
        self._layout, self._sample_layout = InsertLayout(spec), SampleLayout(spec)
        self._slot = 0  # of the next insert
        self._count = 0
        self._inserts = self.memory.data.cast("B")

    def send_insert(
        self, head: pb.InsertRequest, columns: Columns, frames: Frames, timeout: float, ahead: int = 0
    ) -> bool:
        """Send items: `head` without its columns and frames, which are written to where the server reads them.

        ahead: inserts that were sent before and have no answer yet, less than `MAX_PENDING_INSERTS`. Return whether it was
        sent: what is too long for memory is not. Raises NoSharedMemory.
        """
        length = self._layout.length(head.count, len(frames))
        message = head.SerializeToString()
        if length > MAX_MESSAGE or len(message) > MESSAGE_OVERHEAD:
            return False
        self._check_unanswered(ahead)
        begin = self._slot * MAX_MESSAGE
        there, room = self._layout.arrays(head.count, self._inserts[begin : begin + length])
        for name, column in columns.items():
            there[name][...] = column
        room[...] = frames
        self._ask(Frame(INSERT, message, length, self._slot), timeout)
        self._slot = (self._slot + 1) % MAX_PENDING_INSERTS
        return True

    def receive_insert(self) -> pb.InsertResponse:
        """Return the answer to the first unanswered insert. Raises NoSharedMemory, and CallRefused."""
        answer: pb.InsertResponse = self._receive_answer(pb.InsertResponse)[0]
        return answer

    def send_sample(self, request: pb.SampleRequest, timeout: float) -> bool:
        """Ask for items. Return whether it was sent: without room for one more it is not. Raises NoSharedMemory."""
        needed = self._sample_layout.length(request.count)
        if needed > MAX_MESSAGE:
            return False
        self._check_unanswered(0)
        free = self._unused(self._segments)
        segment = next((number for number in free if self._segments[number].nbytes >= needed), 0)
        if not segment and len(self._segments) - len(free) >= MAX_BATCHES:
            return False
        wanted = 0
        if segment:
            free = []
        else:  # parts of a batch differ in length: the next one shall fit, too
            wanted = self._sample_layout.length(1 << (request.count - 1).bit_length())
        for number in free:
            del self._segments[number]
        self._count = request.count
        self._send_request(Frame(SAMPLE, request.SerializeToString(), wanted, segment, free), timeout)
        return True

    def receive_sample(self) -> tuple[pb.SampleResponse, SampleArrays | None]:
        """Return the answer and, if something was drawn, where it lies, read-only. It stays as it is.

        Raises NoSharedMemory, and CallRefused.
        """
        message, frame = self._receive_answer(pb.SampleResponse)
        if not frame.vector:
            return message, None
        try:
            return message, self._sample_layout.arrays(self._count, self._vector_bytes(frame))
        except ValueError as error:
            raise self._close_with_error(str(error)) from None


class ReplayTransport(MemoryWay[ShardMemory]):
    """The way of one writer or sampler to one shard. Used by one thread."""

    def __init__(self, link: ShardLink, spec: TableSpec) -> None:
        super().__init__(link.target, lambda offer: ShardMemory(offer, spec))
        self._link = link

    def current(self) -> ShardMemory | None:
        self.set_offer(self._link.offer)
        return super().current()

    def sample(self, request: pb.SampleRequest, timeout: float) -> Question[ShardMemory]:
        """Ask for items. The result is that of `ShardMemory.receive_sample`, or a SampleResponse by gRPC."""
        deadline = time.monotonic() + timeout
        return MemoryCall(
            self,
            self.now(),
            lambda memory: memory.send_sample(request, timeout),
            ShardMemory.receive_sample,
            lambda: self._link.stub.Sample.future(request, timeout=max(MIN_GRPC_SECONDS, deadline - time.monotonic())),
        )
