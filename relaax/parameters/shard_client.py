"""A worker's end of the connection to one shard."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Call
from relaax.parameters.interfaces import FlatVector, ParameterServerError
from relaax.parameters.precision import Narrower, widened
from relaax.parameters.wire import Carrier, CarrierStub
from relaax.transport import segments
from relaax.transport.channel import Target, open_channel
from relaax.transport.frames import ENDS, LIVE, PULL, PUSH, BrokenFrame, Frame
from relaax.transport.grpc_options import message_bytes
from relaax.transport.local_socket import (
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


_log = logging.getLogger(__name__)
_TRY_AGAIN_SECONDS = 30.0


def shard_range(parameters: int, shard: int, shards: int) -> tuple[int, int]:
    """First element of a vector of so many that the shard owns, and one past its last."""
    return shard * parameters // shards, (shard + 1) * parameters // shards


class ShardClient:
    """One shard: its channel, its range `[start, end)` of the flat vector, the version that the worker has of it, and
    the number of the worker's last push. Shard 0 counts steps and gathers metrics for all of them.

    `precision`: of vectors on the wire. In memory that is shared they are float32.
    """

    def __init__(self, target: Target, shard: int = 0, precision: pb.Precision = pb.PRECISION_UNSPECIFIED) -> None:
        self.target = target
        self.shard = shard
        self._wire_precision = precision
        self._narrowed = Narrower("numbers of a gradient")
        self.start = self.end = 0
        self.version: int | None = None
        self._push_id = 0
        self._memory: SharedMemory | None = None
        self._offered: tuple[pb.SharedMemoryOffer, str] | None = None
        self._unheard = b""  # the socket where nobody listened last time
        self._next_try = 0.0
        self._channel: grpc.Channel | None = None
        self._stub = self._open()

    @property
    def address(self) -> str:
        """HOST:PORT of the shard."""
        return self.target.address

    @property
    def size(self) -> int:
        """The number of elements that the shard owns."""
        return self.end - self.start

    def register(self, request: pb.RegisterRequest) -> Call:
        """Register the worker: its pushes are counted from 1, and it has no parameters."""
        self._leave_memory()
        self._offered = None
        self._push_id = 0
        self.version = None
        return Call(self._stub.Register, request, self.target)

    def check_place(self, response: pb.RegisterResponse, shards: int) -> None:
        """Check that it is the shard that the order of addresses says, with its range. Raises ParameterServerError."""
        if response.shards != shards:
            raise ParameterServerError(
                f"parameter server {self.address} is one of {response.shards} shards, and {shards} "
                f"{'address was' if shards == 1 else 'addresses were'} given: name them all, shard 0 first"
            )
        if response.shard != self.shard:
            raise ParameterServerError(
                f"parameter server {self.address} is shard {response.shard}, and it was named where shard {self.shard} "
                "belongs: name them in their order, shard 0 first"
            )
        if (response.range_start, response.range_end) != shard_range(response.parameters, self.shard, shards):
            raise ParameterServerError(
                f"parameter server {self.address} holds the elements from {response.range_start} to "
                f"{response.range_end} of {response.parameters}, which shard {self.shard} of {shards} does not"
            )

    def take_range(self, response: pb.RegisterResponse) -> None:
        """Set the range that the shard owns."""
        size = self.size
        self.start, self.end = response.range_start, response.range_end
        if self.size != size:
            self._stub = self._open()

    def share_memory(self, response: pb.RegisterResponse, worker_id: str) -> None:
        """Push and pull through memory from now on, while that works. Raises NoSharedMemory if it does not yet.

        A shard may end after it has made its offer. One that makes the same offer again is there, and not of this host.
        """
        if not response.HasField("shared_memory"):
            raise NoSharedMemory("it offers none", Trouble.LASTING)
        self._offered = response.shared_memory, worker_id
        try:
            self.share_again()
        except NoSharedMemory as why:
            if why.trouble is Trouble.UNHEARD:
                before, self._unheard = self._unheard, response.shared_memory.socket
                if before == self._unheard:
                    raise NoSharedMemory(str(why), Trouble.LASTING) from None
            raise

    def share_again(self) -> None:
        """Push and pull through memory as the shard offered it. Raises NoSharedMemory."""
        assert self._offered is not None, "there was an offer"
        self._leave_memory()
        self._next_try = time.monotonic() + _TRY_AGAIN_SECONDS
        self._memory = SharedMemory(*self._offered, self.size)

    @property
    def memory(self) -> SharedMemory | None:
        """The connection through memory, if there is one."""
        return self._memory

    def push(self, worker_id: str, incarnation: int, common: pb.PushRequest, gradient: FlatVector | None) -> Call:
        """Return the shard's part of a push, under a number of its own."""
        self._try_memory_again()
        self._push_id += 1
        request = pb.PushRequest(
            worker_id=worker_id,
            incarnation=incarnation,
            push_id=self._push_id,
            base_version=self.version or 0,
            global_step=common.global_step,
            want_parameters=common.want_parameters,
            withheld=common.withheld,
            applied=common.applied,
            precision=self._precision,
            have_version=self.version,
            target_generation=common.target_generation,
        )
        if self.shard == 0:
            request.env_steps = common.env_steps
            request.report.CopyFrom(common.report)
            request.statistics.extend(common.statistics)
        part: Any = b""
        if gradient is not None:
            part = np.ascontiguousarray(gradient[self.start : self.end], "<f4")
            part = self._narrowed(part, request.precision)
        return Call(self._method(self._stub.Push), Carrier(request, part), self.target)

    def pull(self, asker: pb.PullRequest, have_version: int | None) -> Call:
        """Ask for the shard's range of the vector that `asker` names, unless the worker has this version of it.

        `asker` says as well who asks, and which generation of the target network it has heard of.
        """
        self._try_memory_again()
        request = pb.PullRequest(have_version=have_version, precision=self._precision)
        request.MergeFrom(asker)
        return Call(self._method(self._stub.Pull), request, self.target)

    def report(self, request: pb.ReportRequest) -> Call:
        """Send metrics without a push."""
        return Call(self._stub.Report, request, self.target)

    def received(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """Return the parameters of the shard's range, as `vector` does; the worker has their version now."""
        vector = self.vector(response)
        self.version = response.message.version
        return vector

    def vector(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """Return the vector of the shard's range: read-only float32 [size], a view of the response if it holds float32.

        Raises ParameterServerError if its numbers are too many or too few.
        """
        try:
            vector = widened(response.data, response.message.precision)
        except ValueError as error:
            raise ParameterServerError(f"parameter server {self.address}: {error}") from None
        if len(vector) != self.size:
            raise ParameterServerError(
                f"parameter server {self.address} sent {len(vector)} numbers where {self.size} are its"
            )
        return vector

    def leave(self, request: pb.LeaveRequest, timeout: float) -> Any:
        """Say goodbye, without waiting: the answer is a gRPC future, or None if the channel is closed."""
        with contextlib.suppress(ValueError):
            return self._stub.Leave.future(request, timeout=timeout)
        return None

    def close(self) -> None:
        """Close the channel and the connection through memory."""
        self._leave_memory()
        self._close_channel()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> CarrierStub:
        """Return a stub on a new channel that takes messages as long as the range needs, and no longer ones."""
        self._close_channel()
        self._channel = open_channel(self.target, message_bytes(self.size))
        return CarrierStub(self._channel)

    @property
    def _precision(self) -> pb.Precision:
        return pb.PRECISION_UNSPECIFIED if self._memory is not None else self._wire_precision

    def _method(self, by_grpc: Any) -> Any:
        return by_grpc if self._memory is None else Method(self._memory, by_grpc, self._lost)

    def _lost(self, why: NoSharedMemory) -> None:
        if self._memory is not None:
            _log.info("parameter server %s: by gRPC for now, memory is no longer shared: %s", self.address, why)
            self._leave_memory()
            self._next_try = time.monotonic() + _TRY_AGAIN_SECONDS

    def _try_memory_again(self) -> None:
        """Try the offer of memory again: it holds as long as the shard's process, and the failure may have passed."""
        if self._memory is not None or self._offered is None or time.monotonic() < self._next_try:
            return
        with contextlib.suppress(NoSharedMemory):
            self.share_again()
            _log.info("parameter server %s: by shared memory again", self.address)

    def _leave_memory(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
