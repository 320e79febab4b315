"""Client connections to a server on the same host: messages over a Unix socket, vectors in shared memory."""

from __future__ import annotations

import contextlib
import enum
import hmac
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from relaax.transport import segments
from relaax.transport.frames import CONNECTION_END, HELLO, PROOF_BYTES, BrokenFrame, Frame, FrameSocket
from relaax.transport.segments import FlatVector

OK = 0
CONNECT_SECONDS = 5.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_SENTENCE_BYTES = 4096
_NUMBER_BYTES = 4
_NO_LISTENER_TEXT = (
    "no process listens at its socket: it has ended, or it is on another host or in another network namespace"
)


class FailureKind(enum.Enum):
    """Kinds of failures of shared memory, by remedy."""

    TEMPORARY = enum.auto()
    """A later attempt may succeed."""
    NO_LISTENER = enum.auto()
    """No process listens. A new registration helps only if the shard has restarted as another process."""
    UNKNOWN_WORKER = enum.auto()
    """A new registration helps: the worker is not registered with the shard, or has an old incarnation."""
    PERMANENT = enum.auto()
    """Only another configuration helps."""


_TROUBLES = {
    grpc.StatusCode.NOT_FOUND.value[0]: FailureKind.UNKNOWN_WORKER,
    grpc.StatusCode.FAILED_PRECONDITION.value[0]: FailureKind.PERMANENT,
}


class NoSharedMemory(Exception):
    """Shared memory with the server is impossible or has failed. The message says why."""

    def __init__(self, why: str, trouble: FailureKind = FailureKind.TEMPORARY) -> None:
        super().__init__(why)
        self.kind = trouble


class CallRefused(grpc.RpcError):
    """A refused call, with the status code that gRPC would have."""

    def __init__(self, frame: Frame) -> None:
        self._code, self._details = _CODES.get(frame.kind, grpc.StatusCode.UNKNOWN), error_text(frame)
        super().__init__(self._details)

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the reason, as a sentence."""
        return self._details


class Introduction(NamedTuple):
    """The name of a registered caller, and the proofs of both sides."""

    name: str
    own_proof: bytes
    server_proof: bytes


class MemoryConnection:
    """A shared-memory connection to one server. The first failure ends it; then requests can be repeated by gRPC.

    Received vectors are views of segments. The server does not write to a segment while it is in use here. Used by one
    thread, except that any thread may call `_send_unanswered`.
    """

    _at_once = True
    """The argument of `segments.map_` for segments received with answers."""

    def __init__(self, name: bytes, introduction: Introduction, size: int) -> None:
        """Connect to the socket `name`. `size`: float32 elements of `memory`. Raises NoSharedMemory."""
        self._segments: dict[int, FlatVector] = {}
        self._unanswered = 0
        self._sending = threading.Lock()
        self._reading = False  # true after an interrupted read, when an answer may be partly read
        self._timeout = CONNECT_SECONDS
        self._frames, self.memory = connect(name, introduction, size, self._timeout)
        """`memory`: float32 [size], which both sides can write to."""

    def close(self) -> None:
        """Close the socket. Memory is freed when no vector in it is in use."""
        self._frames.shut()  # ends a `send` of another thread
        with self._sending, contextlib.suppress(OSError):
            self._frames.close()

    def _check_unanswered(self, unanswered: int) -> None:
        """Raise NoSharedMemory if the count of unanswered requests is wrong because a caller was interrupted."""
        if self._unanswered != unanswered or self._reading:
            raise self._close_with_error("another request has no answer yet")

    def _send_request(self, frame: Frame, timeout: float, before: Iterable[Frame] = ()) -> None:
        """Send a request whose answer must arrive within `timeout` seconds, after the frames `before`.

        Raises NoSharedMemory.
        """
        self._unanswered += 1
        try:
            if timeout != self._timeout:
                self._frames.socket.settimeout(timeout)
                self._timeout = timeout
            self._send_unanswered(frame, before)
        except OSError as error:
            raise self._close_with_error(failure_text(error)) from None

    def _send_unanswered(self, frame: Frame, before: Iterable[Frame] = ()) -> None:
        """Send a frame, after the frames `before`. Raises OSError."""
        with self._sending:
            self._frames.send(frame, None, before)

    def _receive_answer(self, kind: Any) -> tuple[Any, Frame]:
        """Return the answer to the oldest unanswered request: a message of type `kind`, and its frame.

        Raises NoSharedMemory, and CallRefused.
        """
        self._check_unanswered(self._unanswered)
        self._reading = True
        try:
            frame, descriptor = self._frames.receive()
        except (OSError, BrokenFrame) as error:
            raise self._close_with_error(failure_text(error)) from None
        self._unanswered, self._reading = self._unanswered - 1, False
        for number in frame.numbers:
            self._segments.pop(number, None)
        try:
            if frame.kind == CONNECTION_END:
                raise self._close_with_error(error_text(frame))
            if frame.kind != OK:
                raise CallRefused(frame)
            if descriptor is not None:
                size = os.fstat(descriptor).st_size // _NUMBER_BYTES
                self._segments[frame.segment] = segments.map_(descriptor, size, writable=False, at_once=self._at_once)
            return kind.FromString(frame.message), frame
        except (DecodeError, OSError, ValueError) as error:
            raise self._close_with_error(failure_text(error)) from None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _vector_bytes(self, number: int, length: int) -> memoryview:
        """Return the first `length` bytes of a segment, an answer's vector. Raises NoSharedMemory."""
        segment = self._segments.get(number)
        if segment is None or length > segment.nbytes:
            raise self._close_with_error(f"segment {number} does not hold a vector of {length} bytes")
        return segment.data.cast("B")[:length]

    def _unused(self, numbers: Iterable[int]) -> list[int]:
        """Return the segments in `numbers` that have no view in this process."""
        return [number for number in numbers if sys.getrefcount(self._segments[number]) == _ALONE]

    def _close_with_error(self, why: str, trouble: FailureKind = FailureKind.TEMPORARY) -> NoSharedMemory:
        self.close()
        return NoSharedMemory(why, trouble)


_probe = {0: np.empty(0)}
_ALONE = sys.getrefcount(_probe[0])
"""Python's reference count of an array that is referenced only by its dictionary."""


def connect(name: bytes, introduction: Introduction, size: int, timeout: float) -> tuple[FrameSocket, FlatVector]:
    """Return a connection to the socket `name`, and memory that both sides can write to: float32 [size].

    `timeout`: seconds for the connection, and again for the handshake. Raises NoSharedMemory.
    """
    if not segments.SUPPORTED:
        raise NoSharedMemory("this system cannot share memory by descriptor", FailureKind.PERMANENT)
    try:
        frames = FrameSocket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), descriptors=True)
    except OSError as error:
        raise NoSharedMemory(f"no socket is available: {failure_text(error)}") from None
    try:
        frames.socket.settimeout(timeout)
        try:
            frames.socket.connect(b"\0" + name)
        except ConnectionRefusedError:
            raise NoSharedMemory(_NO_LISTENER_TEXT, FailureKind.NO_LISTENER) from None
        memory = _shake_hands(frames, introduction, size, time.monotonic() + timeout)
        frames.socket.settimeout(timeout)
        return frames, memory
    except (OSError, BrokenFrame, ValueError) as error:
        frames.close()
        raise NoSharedMemory(failure_text(error)) from None
    except NoSharedMemory:
        frames.close()
        raise


def _shake_hands(frames: FrameSocket, introduction: Introduction, size: int, deadline: float) -> FlatVector:
    frames.send(Frame(HELLO, introduction.name.encode() + introduction.own_proof, _NUMBER_BYTES * size))
    frame, descriptor = frames.receive(_SENTENCE_BYTES, deadline)
    if descriptor is None:
        raise missing_descriptor_error(frame)
    try:
        if len(frame.message) != PROOF_BYTES or not hmac.compare_digest(frame.message, introduction.server_proof):
            raise BrokenFrame("the process that answered did not prove that it is the server")
        return segments.map_(descriptor, size, writable=True, at_once=False)
    finally:
        os.close(descriptor)


def missing_descriptor_error(frame: Frame) -> NoSharedMemory:
    """Return the error for an answer without the requested descriptor."""
    if frame.kind == OK:
        return NoSharedMemory("this system does not pass descriptors between processes", FailureKind.PERMANENT)
    return NoSharedMemory(error_text(frame), _TROUBLES.get(frame.kind, FailureKind.TEMPORARY))


def error_text(frame: Frame) -> str:
    """Return the error text in a frame."""
    return frame.message.decode("utf-8", "replace")


def failure_text(error: Exception) -> str:
    """Return why there is no answer, as a clause."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
