"""Connect a worker to a shard on the same host: messages over a Unix socket, vectors through shared memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import segments
from relaax.parameters.frames import ENDS, LIVE, PULL, PUSH, BrokenFrame, Frame
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.local_socket import (
    CONNECT_SECONDS,
    OK,
    CallRefused,
    Introduction,
    NoSharedMemory,
    Trouble,
    connected,
    reason,
    refusal,
    sentence,
)
from relaax.parameters.wire import Carrier

_KINDS = {pb.PushRequest: PUSH, pb.PullRequest: PULL}
_ANSWERS: dict[int, type[Message]] = {PUSH: pb.PushResponse, PULL: pb.PullResponse}
_NUMBER_BYTES = 4


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
        self._timeout = CONNECT_SECONDS
        introduction = Introduction(worker_id, offer.worker_proof, offer.shard_proof)
        self._frames, self.gradient = connected(offer.socket, introduction, size, self._timeout)
        """`gradient`: float32 [size], where the shard reads a push's vector: computed there, it is not copied."""

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
            raise self._ended(reason(error)) from None

    def answer(self) -> Carrier[Any]:
        """Return the answer to the question. Its vector is read-only and stays as it is.

        Raises NoSharedMemory, and CallRefused if the shard refuses the call.
        """
        try:
            frame, descriptor = self._frames.receive()
        except (OSError, BrokenFrame) as error:
            raise self._ended(reason(error)) from None
        assert self._asked is not None, "a question comes before its answer"
        asked, self._asked = self._asked, None
        for number in frame.numbers:
            self._segments.pop(number, None)
            self._had.discard(number)
        try:
            if frame.kind == ENDS:
                raise self._ended(sentence(frame))
            if frame.kind != OK:
                raise CallRefused.by(frame)
            message = _ANSWERS[asked].FromString(frame.message)
            return Carrier(message, self._received(frame, descriptor)) if frame.vector else Carrier(message)
        except (DecodeError, OSError, ValueError) as error:
            raise self._ended(reason(error)) from None
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
                why = refusal(frame)
                raise self._ended(str(why), why.trouble)
            try:
                message = pb.LiveVectors.FromString(frame.message)
                return message, segments.map_(descriptor, self.gradient.size, writable=True)
            finally:
                os.close(descriptor)
        except (DecodeError, OSError, BrokenFrame, ValueError) as error:
            raise self._ended(reason(error)) from None

    def close(self) -> None:
        """Close the socket. Memory is freed when no vector is in use."""
        with contextlib.suppress(OSError):
            self._frames.close()

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


_probe = {0: np.empty(0)}
_ALONE = sys.getrefcount(_probe[0])
"""References to an array that only its dictionary knows, as Python counts them."""
