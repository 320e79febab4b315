"""Talk to a server of the same host: messages over the Unix socket that it offers, vectors in memory of both."""

from __future__ import annotations

import contextlib
import enum
import hmac
import os
import socket
import sys
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
_UNHEARD = "nobody listens at its socket: it has ended, or is under another kernel or in another network namespace"


class FailureKind(enum.Enum):
    """Reasons for no shared memory, by what helps."""

    TEMPORARY = enum.auto()
    """A later attempt may succeed."""
    NO_LISTENER = enum.auto()
    """Nobody listens: a new registration helps if the shard is another process now, else nothing does."""
    UNKNOWN_WORKER = enum.auto()
    """A new registration helps: the shard does not know the worker, or is of another incarnation."""
    PERMANENT = enum.auto()
    """Only another configuration helps."""


_TROUBLES = {
    grpc.StatusCode.NOT_FOUND.value[0]: FailureKind.UNKNOWN_WORKER,
    grpc.StatusCode.FAILED_PRECONDITION.value[0]: FailureKind.PERMANENT,
}


class NoSharedMemory(Exception):
    """Shared memory with the shard is impossible, or no longer possible. The message says why."""

    def __init__(self, why: str, trouble: FailureKind = FailureKind.TEMPORARY) -> None:
        super().__init__(why)
        self.kind = trouble


class CallRefused(grpc.RpcError):
    """The refusal of a call, with the status code that gRPC would have."""

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
    """The name of a caller, as the server knows it, and what each side proves itself by."""

    name: str
    own_proof: bytes
    server_proof: bytes


class MemoryConnection:
    """One connection. It ends with the first failure: what was asked can be asked again by gRPC, of the same server.

    Vectors that were received are views of segments, to which the server does not write while one is in use here. Not
    thread-safe.
    """

    _at_once = True
    """See `segments.map_`: for the segments that come with answers."""

    def __init__(self, name: bytes, who: Introduction, size: int) -> None:
        """Connect to the socket of this name. Raises NoSharedMemory."""
        self._segments: dict[int, FlatVector] = {}
        self._unanswered = 0
        self._reading = False  # an answer may be there in part, if its reader was interrupted
        self._timeout = CONNECT_SECONDS
        self._frames, self.memory = connect(name, who, size, self._timeout)
        """`memory`: float32 [size], which both sides write to."""

    def close(self) -> None:
        """Close the socket. Memory is freed when no vector is in use."""
        self._frames.shut()
        with contextlib.suppress(OSError):
            self._frames.close()

    def _check_unanswered(self, unanswered: int) -> None:
        """Raise NoSharedMemory unless so many questions are unanswered: a caller was interrupted while it waited."""
        if self._unanswered != unanswered or self._reading:
            raise self._close_with_error("another question has no answer yet")

    def _send_request(self, frame: Frame, timeout: float) -> None:
        """Send a question, whose answer has `timeout` seconds. Raises NoSharedMemory."""
        self._unanswered += 1
        try:
            if timeout != self._timeout:
                self._frames.socket.settimeout(timeout)
                self._timeout = timeout
            self._frames.send(frame)
        except OSError as error:
            raise self._close_with_error(failure_text(error)) from None

    def _receive_answer(self, kind: Any) -> tuple[Any, Frame]:
        """Return the answer to the first unanswered question: a message of type `kind`, and its frame.

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

    def _vector_bytes(self, frame: Frame) -> memoryview:
        """Return the bytes of the vector that an answer names. Raises NoSharedMemory."""
        segment = self._segments.get(frame.segment)
        if segment is None or frame.vector > segment.nbytes:
            raise self._close_with_error(f"segment {frame.segment} holds no vector of {frame.vector} bytes")
        return segment.data.cast("B")[: frame.vector]

    def _unused(self, numbers: Iterable[int]) -> list[int]:
        """Return the segments among `numbers` of which no view is left in this process."""
        return [number for number in numbers if sys.getrefcount(self._segments[number]) == _ALONE]

    def _close_with_error(self, why: str, trouble: FailureKind = FailureKind.TEMPORARY) -> NoSharedMemory:
        self.close()
        return NoSharedMemory(why, trouble)


_probe = {0: np.empty(0)}
_ALONE = sys.getrefcount(_probe[0])
"""References to an array that only its dictionary knows, as Python counts them."""


def connect(name: bytes, who: Introduction, size: int, timeout: float) -> tuple[FrameSocket, FlatVector]:
    """Return a connection to the socket of this name, and memory that both sides may write to: float32 [size].

    `timeout`: seconds for each of the two. Raises NoSharedMemory.
    """
    if not segments.SUPPORTED:
        raise NoSharedMemory("this system has no memory that can be handed over", FailureKind.PERMANENT)
    try:
        frames = FrameSocket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), descriptors=True)
    except OSError as error:
        raise NoSharedMemory(f"no socket can be had: {failure_text(error)}") from None
    try:
        frames.socket.settimeout(timeout)
        try:
            frames.socket.connect(b"\0" + name)
        except ConnectionRefusedError:
            raise NoSharedMemory(_UNHEARD, FailureKind.NO_LISTENER) from None
        memory = _shake_hands(frames, who, size, time.monotonic() + timeout)
        frames.socket.settimeout(timeout)
        return frames, memory
    except (OSError, BrokenFrame, ValueError) as error:
        frames.close()
        raise NoSharedMemory(failure_text(error)) from None
    except NoSharedMemory:
        frames.close()
        raise


def _shake_hands(frames: FrameSocket, who: Introduction, size: int, deadline: float) -> FlatVector:
    frames.send(Frame(HELLO, who.name.encode() + who.own_proof, _NUMBER_BYTES * size))
    frame, descriptor = frames.receive(_SENTENCE_BYTES, deadline)
    if descriptor is None:
        raise missing_descriptor_error(frame)
    try:
        if len(frame.message) != PROOF_BYTES or not hmac.compare_digest(frame.message, who.server_proof):
            raise BrokenFrame("whoever answered did not prove to be the shard")
        return segments.map_(descriptor, size, writable=True, at_once=False)
    finally:
        os.close(descriptor)


def missing_descriptor_error(frame: Frame) -> NoSharedMemory:
    """Return what came without the descriptor that was asked for."""
    if frame.kind == OK:
        return NoSharedMemory("this system hands over no descriptors", FailureKind.PERMANENT)
    return NoSharedMemory(error_text(frame), _TROUBLES.get(frame.kind, FailureKind.TEMPORARY))


def error_text(frame: Frame) -> str:
    """Return what a frame says instead of an answer."""
    return frame.message.decode("utf-8", "replace")


def failure_text(error: Exception) -> str:
    """Return why there is no answer, in half a sentence."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
