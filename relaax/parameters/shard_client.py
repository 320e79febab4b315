"""A worker's client of one shard, by gRPC or through shared memory."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Call
from relaax.parameters.interfaces import FlatVector, ParameterServerError
from relaax.parameters.precision import Narrower, widened
from relaax.parameters.wire import CarrierStub
from relaax.transport import segments
from relaax.transport.channel import Target, open_channel
from relaax.transport.frames import LIVE, PULL, PUSH, BrokenFrame, Frame
from relaax.transport.grpc_options import message_bytes
from relaax.transport.local_socket import (
    FailureKind,
    Introduction,
    MemoryConnection,
    NoSharedMemory,
    failure_text,
    missing_descriptor_error,
)
from relaax.transport.long_messages import Carrier
from relaax.transport.shard_link import MemoryCall, MemoryTransport, placement_error

_KINDS = {pb.PushRequest: PUSH, pb.PullRequest: PULL}
_ANSWERS: dict[int, type[Message]] = {PUSH: pb.PushResponse, PULL: pb.PullResponse}
_NUMBER_BYTES = 4


class SharedMemory(MemoryConnection):
    """A shared-memory connection to a shard, for gradients and parameters."""

    def __init__(self, offer: pb.SharedMemoryOffer, worker_id: str, size: int) -> None:
        """Connect, for a vector of `size` elements. Raises NoSharedMemory."""
        super().__init__(offer.socket, Introduction(worker_id, offer.worker_proof, offer.shard_proof), size)
        self._had: set[int] = set()  # segments that the shard does not overwrite while they are in use here
        self._asked = 0

    @property
    def gradient(self) -> FlatVector:
        """The memory from which the shard reads a gradient, float32 [size]. A gradient computed here is not copied."""
        return self.memory

    def ask(self, request: Carrier[pb.PushRequest] | pb.PullRequest, timeout: float) -> bool:
        """Send a request with a timeout in seconds. Its vector is copied to `gradient` unless it is already there.

        Always returns True, which tells `MemoryCall` that the request fits. Raises NoSharedMemory.
        """
        message, data = (request.message, request.data) if isinstance(request, Carrier) else (request, b"")
        vector = memoryview(data).nbytes
        self._check_unanswered(0)
        if vector > self.memory.nbytes:
            raise self._close_with_error(f"{vector} bytes do not fit into shared memory of {self.memory.nbytes}")
        if vector:
            numbers = np.frombuffer(data, "<f4")
            if numbers.ctypes.data != self.memory.ctypes.data:
                np.copyto(self.memory[: vector // _NUMBER_BYTES], numbers)
        self._asked = _KINDS[type(message)]
        self._had &= self._segments.keys()
        free = self._unused(self._had)
        self._had.difference_update(free)
        self._send_request(Frame(self._asked, message.SerializeToString(), vector, numbers=free), timeout)
        return True

    def answer(self) -> Carrier[Any]:
        """Return the answer to the last request. Its vectors are read-only and do not change.

        Raises NoSharedMemory, and CallRefused if the shard refuses the call.
        """
        message, frame = self._receive_answer(_ANSWERS[self._asked])
        if not frame.vector:
            return Carrier(message)
        numbers = (frame.segment, frame.second) if frame.second else (frame.segment,)
        self._had.update(numbers)
        return Carrier(message, *(self._vector_bytes(number, frame.vector) for number in numbers))

    def live(self, index: int, identity: pb.PullRequest) -> tuple[pb.LiveVectors, FlatVector]:
        """Return the description of the shard's own vectors, and a writable mapping of vector `index`.

        `identity`: the worker and its incarnation. Raises NoSharedMemory.
        """
        try:
            self._frames.send(Frame(LIVE, identity.SerializeToString(), segment=index))
            frame, descriptor = self._frames.receive()
            if descriptor is None:
                why = missing_descriptor_error(frame)
                raise self._close_with_error(str(why), why.kind)
            try:
                message = pb.LiveVectors.FromString(frame.message)
                return message, segments.map_(descriptor, self.memory.size, writable=True)
            finally:
                os.close(descriptor)
        except (DecodeError, OSError, BrokenFrame, ValueError) as error:
            raise self._close_with_error(failure_text(error)) from None


class _MemoryMethod:
    """A stub method that uses shared memory, or gRPC if shared memory fails."""

    def __init__(self, transport: MemoryTransport[SharedMemory], memory: SharedMemory, by_grpc: Any) -> None:
        self._transport, self._memory, self._by_grpc = transport, memory, by_grpc

    def __call__(self, request: Any, timeout: float) -> Any:
        try:
            self._memory.ask(request, timeout)
            return self._memory.answer()
        except NoSharedMemory as why:
            self._transport.mark_lost(self._memory, why)
        return self._by_grpc(request, timeout=timeout)

    def future(self, request: Any, timeout: float) -> MemoryCall[SharedMemory]:
        """Send the request and return the pending call."""
        return MemoryCall(
            self._transport,
            self._memory,
            lambda memory: memory.ask(request, timeout),
            SharedMemory.answer,
            lambda: self._by_grpc.future(request, timeout=timeout),
        )


def shard_range(parameters: int, shard: int, shards: int) -> tuple[int, int]:
    """Return the range [start, end) of a vector of `parameters` elements that the shard owns."""
    return shard * parameters // shards, (shard + 1) * parameters // shards


class ShardClient:
    """A client of one shard, with the shard's range `[start, end)` of the flat vector.

    It keeps the version of the parameters that the worker has, and the number of the worker's last push. Shard 0 counts
    steps and gathers metrics for all shards.

    `precision`: that of vectors sent by gRPC. In shared memory they are float32.
    """

    def __init__(self, target: Target, shard: int = 0, precision: pb.Precision = pb.PRECISION_UNSPECIFIED) -> None:
        self.target = target
        self.shard = shard
        self._wire_precision = precision
        self._narrowed = Narrower("numbers of a gradient")
        self.start = self.end = 0
        self.version: int | None = None
        self.has_soft_target = False
        """Whether answers to pushes can contain the target network."""
        self.wants_parameters = True
        """Whether parameters are requested again after the first pull."""
        self._push_id = 0
        self._worker_id = ""
        self.transport = MemoryTransport(target, lambda offer: SharedMemory(offer, self._worker_id, self.size))
        self._dead_socket = b""  # the last offered socket that had no listener
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

    @property
    def memory(self) -> SharedMemory | None:
        """The shared-memory connection, or None."""
        return self.transport.connection

    def register(self, request: pb.RegisterRequest) -> Call:
        """Return the call that registers the worker. Restarts push numbers at 1, and clears the version."""
        self.transport.set_offer(None)
        self._worker_id = request.worker_id
        self._push_id = 0
        self.version = None
        return Call(self._stub.Register, request, self.target)

    def check_place(self, response: pb.RegisterResponse, shards: int) -> None:
        """Check that the shard has the expected position and range. Raises ParameterServerError."""
        trouble = placement_error(self.target, response, self.shard, shards)
        if trouble is not None:
            raise ParameterServerError(trouble)
        if (response.range_start, response.range_end) != shard_range(response.parameters, self.shard, shards):
            raise ParameterServerError(
                f"parameter server {self.address} owns elements {response.range_start} to {response.range_end} of "
                f"{response.parameters}, which is not the range of shard {self.shard} of {shards}"
            )

    def set_range(self, response: pb.RegisterResponse) -> None:
        """Set the range that the shard owns, and whether its target network is soft."""
        before = self.size, self.has_soft_target
        self.start, self.end = response.range_start, response.range_end
        self.has_soft_target = response.soft_target
        if (self.size, self.has_soft_target) != before:
            self._stub = self._open()

    def share_memory(self, response: pb.RegisterResponse) -> None:
        """Use shared memory for pushes and pulls while it works. Raises NoSharedMemory if it does not work now.

        If the socket has no listener, the shard may have ended after its offer. If the shard offers the same socket
        again, it is running, so it is not on this host, and the failure is permanent.
        """
        if not response.HasField("shared_memory"):
            raise NoSharedMemory("it offers none", FailureKind.PERMANENT)
        self.transport.set_offer(response.shared_memory)
        try:
            self.transport.connect()
        except NoSharedMemory as why:
            if why.kind is FailureKind.NO_LISTENER:
                before, self._dead_socket = self._dead_socket, response.shared_memory.socket
                if before == self._dead_socket:
                    raise NoSharedMemory(str(why), FailureKind.PERMANENT) from None
            raise

    def push(
        self,
        worker_id: str,
        incarnation: int,
        common: pb.PushRequest,
        gradient: FlatVector | None,
        have_target: int | None = None,
    ) -> Call:
        """Return the call with the shard's part of a push, under a new push number.

        `have_target`: the generation of the soft target network that the worker has, to receive another one with the
        answer; None if it receives none.
        """
        memory = self.transport.current()
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
            precision=self._precision(memory),
            have_version=self.version,
            target_generation=common.target_generation,
            have_target=have_target,
            without_parameters=self._without_parameters,
        )
        if self.shard == 0:
            request.env_steps, request.have_edition = common.env_steps, common.have_edition
            request.report.CopyFrom(common.report)
            request.statistics.extend(common.statistics)
        part: Any = b""
        if gradient is not None:
            part = np.ascontiguousarray(gradient[self.start : self.end], "<f4")
            part = self._narrowed(part, request.precision)
        return Call(self._method(memory, self._stub.Push), Carrier(request, part), self.target)

    def pull(self, identity: pb.PullRequest, have_version: int | None, newer_than: int | None = None) -> Call:
        """Return the call that requests the shard's range of a vector, unless the worker has `have_version` of it.

        `identity`: the worker, its incarnation, the newest generation of the target network, and the vector's name.
        `newer_than`: the shard waits for a newer version before it answers, but at most a second.
        """
        memory = self.transport.current()
        request = pb.PullRequest(have_version=have_version, precision=self._precision(memory), newer_than=newer_than)
        request.MergeFrom(identity)
        request.without_parameters = not request.vector and self._without_parameters
        return Call(self._method(memory, self._stub.Pull), request, self.target)

    def report(self, request: pb.ReportRequest) -> Call:
        """Return the call that sends metrics without a push."""
        return Call(self._stub.Report, request, self.target)

    def received(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """Return the parameters of the shard's range, as `vector` does, and record their version."""
        vector = self.vector(response)
        self.version = response.message.version
        return vector

    def vector(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """Return the vector of the shard's range: read-only float32 [size]; a view if the response has float32.

        Raises ParameterServerError if its length is wrong.
        """
        return self._vector(response.data, response.message.precision)

    def target_part(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector | None:
        """Return the shard's range of the target network, as `vector` does; None if the response has none."""
        return self._vector(response.target, response.message.precision) if len(response.target) else None

    def _vector(self, data: memoryview, precision: pb.Precision) -> FlatVector:
        try:
            vector = widened(data, precision)
        except ValueError as error:
            raise ParameterServerError(f"parameter server {self.address}: {error}") from None
        if len(vector) != self.size:
            raise ParameterServerError(
                f"parameter server {self.address} sent {len(vector)} numbers for its range of {self.size}"
            )
        return vector

    def deregister(self, request: pb.LeaveRequest, timeout: float) -> Any:
        """Deregister without waiting. Return a gRPC future, or None if the channel is closed."""
        with contextlib.suppress(ValueError):
            return self._stub.Leave.future(request, timeout=timeout)
        return None

    def close(self) -> None:
        """Close the channel and the shared-memory connection."""
        self.transport.close()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> CarrierStub:
        """Return a stub on a new channel, whose message limit fits the shard's range, also of the target network."""
        if self._channel is not None:
            self._channel.close()
        self._channel = open_channel(self.target, message_bytes(self.size * (1 + self.has_soft_target)))
        return CarrierStub(self._channel)

    @property
    def _without_parameters(self) -> bool:
        return not self.wants_parameters and self.version is not None

    def _precision(self, memory: SharedMemory | None) -> pb.Precision:
        return pb.PRECISION_UNSPECIFIED if memory is not None else self._wire_precision

    def _method(self, memory: SharedMemory | None, by_grpc: Any) -> Any:
        return by_grpc if memory is None else _MemoryMethod(self.transport, memory, by_grpc)
