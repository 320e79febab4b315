"""Connect a worker to a shard on the same host: messages over a Unix socket, vectors through shared memory."""

from __future__ import annotations

import contextlib
import enum
import hmac
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import segments
from relaax.parameters.frames import ENDS, HELLO, LIVE, PROOF_BYTES, PULL, PUSH, BrokenFrame, Frame, FrameSocket
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.wire import Carrier

_OK = 0
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_KINDS = {pb.PushRequest: PUSH, pb.PullRequest: PULL}
_ANSWERS: dict[int, type[Message]] = {PUSH: pb.PushResponse, PULL: pb.PullResponse}
_NUMBER_BYTES = 4
_CONNECT_SECONDS = 5.0
_SENTENCE_BYTES = 4096


class Trouble(enum.Enum):
    """Reasons for no shared memory, by what helps."""

    MOMENTARY = enum.auto()
    """A later attempt may succeed."""
    UNHEARD = enum.auto()
    """Nobody listens: a new registration helps if the shard is another process now, else nothing does."""
    FORGOTTEN = enum.auto()
    """A new registration helps: the shard does not know the worker, or is of another incarnation."""
    LASTING = enum.auto()
    """Only another configuration helps."""


_TROUBLES = {
    grpc.StatusCode.NOT_FOUND.value[0]: Trouble.FORGOTTEN,
    grpc.StatusCode.FAILED_PRECONDITION.value[0]: Trouble.LASTING,
}


class NoSharedMemory(Exception):
    """Shared memory with the shard is impossible, or no longer possible. The message says why."""

    def __init__(self, why: str, trouble: Trouble = Trouble.MOMENTARY) -> None:
        super().__init__(why)
        self.trouble = trouble


class CallRefused(grpc.RpcError):
    """The shard refused a call. `code` is gRPC's, which is used here too."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the reason, as a sentence."""
        return self._details


class SharedMemory:
    """One connection. It ends with the first thing that goes wrong: what was asked can be asked again by gRPC, which
    leads to the same shard, and a push has a number.

    Vectors that were received are views of memory that the shard does not write to while anybody here has one. Not
    thread-safe.
    """

    def __init__(self, offer: pb.SharedMemoryOffer, worker_id: str, size: int) -> None:
        """Connect, for a vector of `size` elements. Raises NoSharedMemory."""
        self._segments: dict[int, FlatVector] = {}
        self._had: set[int] = set()  # segments that the shard keeps as they are for us
        self._asked: int | None = None
        self._timeout = _CONNECT_SECONDS
        if not segments.SUPPORTED:
            raise NoSharedMemory("this system has no memory that can be handed over", Trouble.LASTING)
        try:
            self._frames = FrameSocket(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), descriptors=True)
        except OSError as error:
            raise NoSharedMemory(f"no socket can be had: {_reason(error)}") from None
        try:
            self._frames.socket.settimeout(self._timeout)
            try:
                self._frames.socket.connect(b"\0" + offer.socket)
            except ConnectionRefusedError:
                raise NoSharedMemory(_UNHEARD, Trouble.UNHEARD) from None
            self.gradient = self._shake_hands(offer, worker_id, size)
            """float32 [size], where the shard reads a push's vector: computed there, it is not copied."""
            self._frames.socket.settimeout(self._timeout)
        except (OSError, BrokenFrame, ValueError) as error:
            self._frames.close()
            raise NoSharedMemory(_reason(error)) from None
        except NoSharedMemory:
            self._frames.close()
            raise

    def ask(self, request: Carrier[pb.PushRequest] | pb.PullRequest, timeout: float) -> None:
        """Send a question, whose vector is copied to `gradient` unless it is there, and which has so many seconds.

        Raises NoSharedMemory.
        """
        message, data = (request.message, request.data) if isinstance(request, Carrier) else (request, b"")
        kind = _KINDS[type(message)]
        vector = memoryview(data).nbytes
        if self._asked is not None:  # it was interrupted while it waited for an answer
            raise self._ended("another question has no answer yet")
        if vector > self.gradient.nbytes:
            raise self._ended(f"{vector} bytes do not fit into memory of {self.gradient.nbytes}")
        if vector:
            _put(np.frombuffer(data, "<f4"), self.gradient[: vector // _NUMBER_BYTES])
        self._asked = kind
        try:
            if timeout != self._timeout:
                self._frames.socket.settimeout(timeout)
                self._timeout = timeout
            self._frames.send(Frame(kind, message.SerializeToString(), vector, numbers=self._needed_no_more()))
        except OSError as error:
            raise self._ended(_reason(error)) from None

    def answer(self) -> Carrier[Any]:
        """Return the answer to the question. Its vector is read-only and stays as it is.

        Raises NoSharedMemory, and CallRefused if the shard refuses the call.
        """
        try:
            frame, descriptor = self._frames.receive()
        except (OSError, BrokenFrame) as error:
            raise self._ended(_reason(error)) from None
        assert self._asked is not None, "a question comes before its answer"
        asked, self._asked = self._asked, None
        for number in frame.numbers:
            self._segments.pop(number, None)
            self._had.discard(number)
        try:
            if frame.kind == ENDS:
                raise self._ended(_sentence(frame))
            if frame.kind != _OK:
                code = _CODES.get(frame.kind, grpc.StatusCode.UNKNOWN)
                raise CallRefused(code, _sentence(frame))
            message = _ANSWERS[asked].FromString(frame.message)
            return Carrier(message, self._received(frame, descriptor)) if frame.vector else Carrier(message)
        except (DecodeError, OSError, ValueError) as error:
            raise self._ended(_reason(error)) from None
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def live(self, index: int, asker: pb.PullRequest) -> tuple[pb.LiveVectors, FlatVector]:
        """Return one of the shard's own vectors, to be changed here too, and what is to be known about them.

        `asker`: who asks, and of which incarnation. Raises NoSharedMemory.
        """
        try:
            self._frames.send(Frame(LIVE, asker.SerializeToString(), segment=index))
            frame, descriptor = self._frames.receive()
            if descriptor is None:
                why = _refusal(frame)
                raise self._ended(str(why), why.trouble)
            try:
                message = pb.LiveVectors.FromString(frame.message)
                return message, segments.map_(descriptor, self.gradient.size, writable=True)
            finally:
                os.close(descriptor)
        except (DecodeError, OSError, BrokenFrame, ValueError) as error:
            raise self._ended(_reason(error)) from None

    def close(self) -> None:
        """Close the socket. Memory is freed when no vector is in use."""
        with contextlib.suppress(OSError):
            self._frames.close()

    def _shake_hands(self, offer: pb.SharedMemoryOffer, worker_id: str, size: int) -> FlatVector:
        """Return the gradient's memory: float32 [size]."""
        deadline = time.monotonic() + self._timeout
        self._frames.send(Frame(HELLO, worker_id.encode() + offer.worker_proof, _NUMBER_BYTES * size))
        frame, descriptor = self._frames.receive(_SENTENCE_BYTES, deadline)
        if descriptor is None:
            raise _refusal(frame)
        try:
            if len(frame.message) != PROOF_BYTES or not hmac.compare_digest(frame.message, offer.shard_proof):
                raise BrokenFrame("whoever answered did not prove to be the shard")
            return segments.map_(descriptor, size, writable=True, at_once=False)
        finally:
            os.close(descriptor)

    def _received(self, frame: Frame, descriptor: int | None) -> memoryview:
        if descriptor is not None:
            size = os.fstat(descriptor).st_size // _NUMBER_BYTES
            self._segments[frame.segment] = segments.map_(descriptor, size, writable=False)
        segment = self._segments.get(frame.segment)
        if segment is None or frame.vector > segment.nbytes:
            raise ValueError(f"segment {frame.segment} holds no vector of {frame.vector} bytes")
        self._had.add(frame.segment)
        return segment.data.cast("B")[: frame.vector]

    def _needed_no_more(self) -> list[int]:
        """The segments of which no view is left in this process."""
        free = [number for number in self._had if sys.getrefcount(self._segments[number]) == _ALONE]
        self._had.difference_update(free)
        return free

    def _ended(self, why: str, trouble: Trouble = Trouble.MOMENTARY) -> NoSharedMemory:
        self.close()
        return NoSharedMemory(why, trouble)


class Method:
    """A method of a gRPC stub that uses shared memory as long as that works, and then gRPC.

    It is called as those of stubs are.
    """

    def __init__(self, memory: SharedMemory, by_grpc: Any, lost: Callable[[NoSharedMemory], None]) -> None:
        """`lost` is called when memory could not be used, before gRPC is."""
        self._memory = memory
        self._by_grpc = by_grpc
        self._lost = lost

    def __call__(self, request: Any, timeout: float) -> Any:
        """Return the answer. Raises grpc.RpcError."""
        return self.future(request, timeout).result()

    def future(self, request: Any, timeout: float) -> Any:
        """Send the request; the answer is the result of what is returned."""
        try:
            self._memory.ask(request, timeout)
        except NoSharedMemory as why:
            return self._future_by_grpc(why, request, timeout)
        return _Answer(self._memory, lambda why: self._future_by_grpc(why, request, timeout))

    def _future_by_grpc(self, why: NoSharedMemory, request: Any, timeout: float) -> Any:
        self._lost(why)
        return self._by_grpc.future(request, timeout=timeout)


class _Answer:
    """An answer that is still to come, through shared memory or else by gRPC."""

    def __init__(self, memory: SharedMemory, otherwise: Callable[[NoSharedMemory], Any]) -> None:
        self._memory = memory
        self._otherwise = otherwise

    def result(self) -> Any:
        """Wait for the answer. Raises grpc.RpcError."""
        try:
            return self._memory.answer()
        except NoSharedMemory as why:
            return self._otherwise(why).result()


def _put(vector: FlatVector, memory: FlatVector) -> None:
    if vector.ctypes.data != memory.ctypes.data:
        np.copyto(memory, vector)


_UNHEARD = "nobody listens at its socket: it has ended, or is under another kernel or in another network namespace"


def _refusal(frame: Frame) -> NoSharedMemory:
    """Return what came without the descriptor that was asked for."""
    if frame.kind == _OK:
        return NoSharedMemory("this system hands over no descriptors", Trouble.LASTING)
    return NoSharedMemory(_sentence(frame), _TROUBLES.get(frame.kind, Trouble.MOMENTARY))


def _sentence(frame: Frame) -> str:
    return frame.message.decode("utf-8", "replace")


def _reason(error: Exception) -> str:
    """In half a sentence."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


_probe = {0: np.empty(0)}
_ALONE = sys.getrefcount(_probe[0])
"""References to an array that only its dictionary knows, as Python counts them."""
