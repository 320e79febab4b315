"""Shared memory with a replay server on the same host: messages over a Unix socket, arrays in shared segments."""

from __future__ import annotations

import threading
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
from relaax.transport.frames import INSERT, SAMPLE, UPDATE, Frame
from relaax.transport.grpc_options import MESSAGE_OVERHEAD
from relaax.transport.local_socket import Introduction, MemoryConnection
from relaax.transport.shard_link import MemoryCall, MemoryTransport

MIN_GRPC_SECONDS = 0.5
"""Minimum timeout in seconds of a gRPC call that replaces a failed call through shared memory."""
MAX_UNREAD_UPDATES = 2**15
"""Maximum bytes of priority updates that the server may not have read yet. The socket has room for them, so that an
update never waits."""
_UPDATE_OVERHEAD = 2**10  # of a message in the socket


class ShardMemory(MemoryConnection):
    """A shared-memory connection of one writer or sampler to one shard.

    Each sample that is in use has its own segment, which the server does not write to. Up to `MAX_PENDING_INSERTS`
    inserts may be pending at a time.
    """

    _at_once = False

    def __init__(self, offer: pb.ReplayMemoryOffer, spec: TableSpec) -> None:
        """Connect to the socket of `offer`. Raises NoSharedMemory."""
        super().__init__(offer.socket, Introduction(offer.name, offer.caller_proof, offer.server_proof), INSERT_NUMBERS)
        self._layout, self._sample_layout = InsertLayout(spec), SampleLayout(spec)
        self._slot = 0  # of the next insert
        self._count = 0
        self._inserts = self.memory.data.cast("B")
        self._updating = threading.Lock()
        self._updates: list[Frame] = []  # to send with the next request
        self._unread = 0  # bytes of the updates that the server may not have read
        self._unread_later = 0  # the part that was sent after the last request, or waits for the next one

    def send_insert(
        self, head: pb.InsertRequest, columns: Columns, frames: Frames, timeout: float, ahead: int = 0
    ) -> bool:
        """Send an insert: `head` over the socket, columns and frames in shared memory.

        ahead: number of pending inserts, less than `MAX_PENDING_INSERTS`.

        Return False, without sending, if the insert is too long for shared memory. Raises NoSharedMemory.
        """
        length = self._layout.length(head.count, len(frames))
        message = head.SerializeToString()
        if length > MAX_MESSAGE or len(message) > MESSAGE_OVERHEAD:
            return False
        self._check_unanswered(ahead)
        begin = self._slot * MAX_MESSAGE
        shared_columns, shared_frames = self._layout.arrays(head.count, self._inserts[begin : begin + length])
        for name, column in columns.items():
            shared_columns[name][...] = column
        shared_frames[...] = frames
        self._send_request(Frame(INSERT, message, length, self._slot), timeout)
        self._slot = (self._slot + 1) % MAX_PENDING_INSERTS
        return True

    def receive_insert(self) -> pb.InsertResponse:
        """Wait for the answer to the oldest pending insert. Raises NoSharedMemory and CallRefused."""
        answer: pb.InsertResponse = self._receive_answer(pb.InsertResponse)[0]
        return answer

    def send_sample(self, request: pb.SampleRequest, timeout: float) -> bool:
        """Send a sample request. Raises NoSharedMemory.

        Return False, without sending, if the sample is too long or `MAX_BATCHES` segments are in use.
        """
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
        else:  # round up, because later requests may be for more items
            wanted = self._sample_layout.length(1 << (request.count - 1).bit_length())
        for number in free:
            del self._segments[number]
        self._count = request.count
        with self._updating:
            updates, self._updates, self._unread_later = self._updates, [], 0
        self._send_request(Frame(SAMPLE, request.SerializeToString(), wanted, segment, free), timeout, updates)
        return True

    def receive_sample(self) -> tuple[pb.SampleResponse, SampleArrays | None]:
        """Wait for the answer; return it and the drawn arrays, or None if nothing was drawn.

        The arrays are read-only views of a segment, which the server does not overwrite while they exist. Raises
        NoSharedMemory and CallRefused.
        """
        message, frame = self._receive_answer(pb.SampleResponse)
        with self._updating:
            self._unread = self._unread_later  # the server reads frames in order
        if not frame.vector:
            return message, None
        try:
            return message, self._sample_layout.arrays(self._count, self._vector_bytes(frame.segment, frame.vector))
        except ValueError as error:
            raise self._close_with_error(str(error)) from None

    def send_updates(self, request: pb.UpdatePrioritiesRequest) -> bool:
        """Send priority updates, which are not answered. They precede the next sample request. Thread-safe.

        While a sample is pending, they are sent together with the next request, which wakes the server once, and are
        dropped if the connection ends before. Return False, without sending, if the server may have too many to read,
        or the connection has ended.
        """
        frame = Frame(UPDATE, request.SerializeToString())
        length = len(frame.message) + _UPDATE_OVERHEAD
        with self._updating:
            if self._unread + length > MAX_UNREAD_UPDATES:
                return False
            if self._unanswered:
                self._updates.append(frame)
            else:
                try:
                    self._send_unanswered(frame)
                except OSError:
                    return False  # the thread that samples finds out why
            self._unread += length
            self._unread_later += length
            return True


class ReplayTransport(MemoryTransport[ShardMemory]):
    """The transport between one writer or sampler and one shard: shared memory, or else gRPC. Used by one thread."""

    def __init__(self, link: ShardLink, spec: TableSpec) -> None:
        super().__init__(link.target, lambda offer: ShardMemory(offer, spec))
        self._link = link

    def current(self) -> ShardMemory | None:
        self.set_offer(self._link.offer)
        return super().current()

    def sample(self, request: pb.SampleRequest, timeout: float) -> MemoryCall[ShardMemory]:
        """Send a sample request. Its result is that of `ShardMemory.receive_sample`, or a SampleResponse by gRPC."""
        deadline = time.monotonic() + timeout
        return MemoryCall(
            self,
            self.current(),
            lambda memory: memory.send_sample(request, timeout),
            ShardMemory.receive_sample,
            lambda: self._link.stub.Sample.future(request, timeout=max(MIN_GRPC_SECONDS, deadline - time.monotonic())),
        )
