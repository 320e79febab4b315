"""Frames on the Unix socket between a client and a server on one host. Vectors are in shared memory.

The client sends requests and the server answers them in order. Both use the same form of frame: a header of fixed
length, then segment numbers, then a message of the .proto file.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relaax.transport.grpc_options import MESSAGE_OVERHEAD

HELLO, PUSH, PULL, LIVE, INSERT, SAMPLE, UPDATE = 1, 2, 3, 4, 5, 6, 7
"""Kinds of requests. HELLO introduces the client; the others are methods whose messages are long.

PUSH, PULL and LIVE belong to the parameter server, INSERT, SAMPLE and UPDATE to the replay server. LIVE requests one of
the shard's own vectors, which the frame's `segment` selects: 0 is the parameters, the next numbers are the optimizer's
vectors. Its message is that of a pull. UPDATE has new priorities, and is not answered.
"""

CONNECTION_END = 1000
"""Kind of an answer that is not a gRPC status code: the server ends the connection. The message is the reason."""

PROOF_BYTES = 32
WORKER_ID_BYTES = 32

_HEADER = struct.Struct("<IHHIIQ")  # bytes of the message, kind, how many numbers, two segments, bytes of the vector
_NUMBER_BYTES = 4
_BUFFER_BYTES = 2**16
_MAX_DESCRIPTORS = 1
_TRUNCATED = int(socket.MSG_CTRUNC)  # Python's own constant is an enumeration, which is slow
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_DESCRIPTOR_BYTES = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)


class Frame(NamedTuple):
    """One message on the socket, and a reference to its vector in shared memory.

    `kind`: a constant above for a request; for an answer, a gRPC status code (0 is success) or `CONNECTION_END`.
    `vector`: bytes of the vector, 0 without one. `segment`: the segment that holds an answer's vector. `numbers`: in a
    request, segments that the client no longer uses; in an answer, segments that no longer exist. `second`: the segment
    of a second vector of the answer, as long as the first, 0 without one. The client has its descriptor already.
    """

    kind: int
    message: bytes
    vector: int = 0
    segment: int = 0
    numbers: Sequence[int] = ()
    second: int = 0


class BrokenFrame(Exception):
    """The received bytes are not a whole frame. The message says why."""


class FrameSocket:
    """Sender and receiver of frames over a connected Unix socket. The owner sets the socket's timeouts.

    Its methods raise OSError if the socket does. `descriptors`: whether the other side may send a file descriptor with
    a frame; if not, the system closes received descriptors.
    """

    def __init__(self, sock: socket.socket, *, descriptors: bool = False) -> None:
        self.socket = sock
        self._accepts_descriptors = descriptors
        self._buffer = bytearray(_BUFFER_BYTES)
        self._buffered = 0  # bytes of the next frame that were already received

    def send(self, frame: Frame, descriptor: int | None = None, before: Iterable[Frame] = ()) -> None:
        """Send a whole frame, after the frames `before`. The other side receives a duplicate of `descriptor`."""
        data = b"".join([part for one in (*before, frame) for part in _encoded(one)])
        sent = 0
        if descriptor is not None:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            sent = self.socket.sendmsg([data], [rights])
        if sent < len(data):
            self.socket.sendall(memoryview(data)[sent:])

    def receive(self, max_bytes: int = MESSAGE_OVERHEAD, deadline: float | None = None) -> tuple[Frame, int | None]:
        """Return the next frame, and the descriptor that was sent with it. The caller closes the descriptor.

        `max_bytes`: limit of the message and of the numbers. `deadline`: for the whole frame, by the monotonic clock;
        it changes the socket's timeout. Without a deadline, the socket's timeout applies to each read. Raises
        BrokenFrame.
        """
        descriptors: list[int] = []
        try:
            got, self._buffered = self._buffered, 0
            while got < _HEADER.size:
                got += self._read(memoryview(self._buffer)[got:], descriptors, deadline)
            length, kind, count, segment, second, vector = _HEADER.unpack_from(self._buffer)
            if max(length, count * _NUMBER_BYTES) > max_bytes:
                raise BrokenFrame(
                    f"a frame has a message of {length} bytes and {count} numbers; the limit is {max_bytes} bytes each"
                )
            start = _HEADER.size + count * _NUMBER_BYTES
            end = start + length
            if got > end and descriptors:
                raise BrokenFrame("a descriptor was received with more than one frame")
            data = self._buffer if end <= len(self._buffer) else bytearray(end)
            if data is not self._buffer:
                data[:got] = self._buffer[:got]
            while got < end:
                got += self._read(memoryview(data)[got:end], descriptors, deadline)
            numbers = struct.unpack_from(f"<{count}I", data, _HEADER.size) if count else ()
            frame = Frame(kind, bytes(memoryview(data)[start:end]), vector, segment, numbers, second)
            if got > end:
                self._buffered = got - end
                self._buffer[: self._buffered] = self._buffer[end:got]
            return frame, descriptors.pop() if descriptors else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """Shut the socket down, which wakes threads that wait in the other methods. Thread-safe."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _read(self, into: memoryview, descriptors: list[int], deadline: float | None) -> int:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the frame was not received in time")
            self.socket.settimeout(left)
        count = (
            self._read_with_descriptors(into, descriptors) if self._accepts_descriptors else self.socket.recv_into(into)
        )
        if not count:
            raise BrokenFrame("the other side closed the connection")
        return count

    def _read_with_descriptors(self, into: memoryview, descriptors: list[int]) -> int:
        count, ancillary, flags, _ = self.socket.recvmsg_into([into], _DESCRIPTOR_BYTES, _CLOSE_ON_EXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                descriptors += found
        if len(descriptors) > _MAX_DESCRIPTORS:
            raise BrokenFrame("more than one descriptor was received with a frame")
        if flags & _TRUNCATED:
            raise BrokenFrame("a descriptor was lost: this process has reached its limit of descriptors (ulimit -n)")
        return count


def _encoded(frame: Frame) -> tuple[bytes, ...]:
    message, numbers = frame.message, frame.numbers
    header = _HEADER.pack(len(message), frame.kind, len(numbers), frame.segment, frame.second, frame.vector)
    return (header, struct.pack(f"<{len(numbers)}I", *numbers), message) if numbers else (header, message)
