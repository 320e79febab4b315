"""Frames on the Unix socket between a worker and a shard of one host, whose vectors go through shared memory.

Both sides send frames of one form: the worker asks, the shard answers, in the order of the questions. A frame is a
header of fixed length, then numbers of segments, then a message of the .proto file.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import NamedTuple

from relaax.transport.grpc_options import MESSAGE_OVERHEAD

HELLO, PUSH, PULL, LIVE, INSERT, SAMPLE = 1, 2, 3, 4, 5, 6
"""What a worker's frame is: who it is, the methods whose messages are long, of the parameter server and of the replay
server, and between them a question for one of the shard's own vectors, by the frame's `segment`: 0 the parameters, then
the optimizer's. Who asks for that says so as in a pull.
"""

CONNECTION_END = 1000
"""What an answer is, beside a status code of gRPC: the shard ends the connection, its message says why."""

PROOF_BYTES = 32
WORKER_ID_BYTES = 32

_HEADER = struct.Struct("<IHHIQ")  # bytes of the message, kind, how many numbers, segment, bytes of the vector
_NUMBER_BYTES = 4
_RECEIVED = 2**16
_MAX_DESCRIPTORS = 1
_DESCRIPTOR_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)


class Frame(NamedTuple):
    """`kind`: of a question one of those above; of an answer a status code of gRPC, 0 if all is well.

    `vector`: how many bytes of a vector belong to it, 0 if there is none. `segment`: where the answer's vector is.
    `numbers`: of a question, segments that the worker needs no more; of an answer, segments that are no more.
    """

    kind: int
    message: bytes
    vector: int = 0
    segment: int = 0
    numbers: Sequence[int] = ()


class BrokenFrame(Exception):
    """What was received is not a frame, or was cut off. The message says why."""


class FrameSocket:
    """Sends and receives frames over a connected Unix socket, whose timeouts are its owner's to set.

    Both raise OSError if the socket does. `descriptors`: whether the other side may send one with a frame; else the
    system closes what comes.
    """

    def __init__(self, sock: socket.socket, *, descriptors: bool = False) -> None:
        self.socket = sock
        self._takes = descriptors
        self._buffer = bytearray(_RECEIVED)
        self._got = 0  # bytes of the next frame that are there already

    def send(self, frame: Frame, descriptor: int | None = None) -> None:
        """Send a whole frame. `descriptor` goes with it: the other side gets a duplicate."""
        header = _HEADER.pack(len(frame.message), frame.kind, len(frame.numbers), frame.segment, frame.vector)
        data = b"".join((header, struct.pack(f"<{len(frame.numbers)}I", *frame.numbers), frame.message))
        sent = 0
        if descriptor is not None:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            sent = self.socket.sendmsg([data], [rights])
        if sent < len(data):
            self.socket.sendall(memoryview(data)[sent:])

    def receive(self, most: int = MESSAGE_OVERHEAD, deadline: float | None = None) -> tuple[Frame, int | None]:
        """Return the next frame, and the descriptor that came with it, which is the caller's to close.

        `most`: bytes of its message, and of its numbers. `deadline`: of all of it, by the monotonic clock; the socket's
        own timeout is for each part, and is another one afterwards. Raises BrokenFrame.
        """
        descriptors: list[int] = []
        try:
            got, self._got = self._got, 0
            while got < _HEADER.size:
                got += self._read(memoryview(self._buffer)[got:], descriptors, deadline)
            length, kind, count, segment, vector = _HEADER.unpack_from(self._buffer)
            if max(length, count * _NUMBER_BYTES) > most:
                raise BrokenFrame(f"a message of {length} bytes, {count} numbers before it; {most} bytes are the most")
            start = _HEADER.size + count * _NUMBER_BYTES
            end = start + length
            if got > end and descriptors:
                raise BrokenFrame("a descriptor came with more than a frame")
            data = self._buffer if end <= len(self._buffer) else bytearray(end)
            if data is not self._buffer:
                data[:got] = self._buffer[:got]
            while got < end:
                got += self._read(memoryview(data)[got:end], descriptors, deadline)
            numbers = struct.unpack_from(f"<{count}I", data, _HEADER.size) if count else ()
            frame = Frame(kind, bytes(memoryview(data)[start:end]), vector, segment, numbers)
            if got > end:
                self._got = got - end
                self._buffer[: self._got] = self._buffer[end:got]
            return frame, descriptors.pop() if descriptors else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """Wake the threads that wait in the other methods. Thread-safe."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _read(self, into: memoryview, descriptors: list[int], deadline: float | None) -> int:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("it took too long")
            self.socket.settimeout(left)
        count = self._read_both(into, descriptors) if self._takes else self.socket.recv_into(into)
        if not count:
            raise BrokenFrame("the connection was closed")
        return count

    def _read_both(self, into: memoryview, descriptors: list[int]) -> int:
        count, ancillary, flags, _ = self.socket.recvmsg_into([into], _DESCRIPTOR_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                descriptors += found
        if len(descriptors) > _MAX_DESCRIPTORS:
            raise BrokenFrame("more than one descriptor came with a frame")
        if flags & socket.MSG_CTRUNC:
            raise BrokenFrame("a descriptor was lost: this process may have no more of them (ulimit -n)")
        return count
