"""The two transports of the parameter service: gRPC, and shared memory for workers of this host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from relaax.nn.recycled_memory import VectorPool
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import FlatVector
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.service.service import ParameterService
from relaax.server.parameter_server.shard.snapshot_segments import Segment
from relaax.server.ports.local_session import (
    LocalSession,
    SharedMemoryOffers,
    SharedVector,
    receive_hello,
    send_memory,
    send_refusal,
)
from relaax.server.ports.port import CallCounter
from relaax.server.service_errors import errors_as_status
from relaax.transport.frames import CONNECTION_END, LIVE, PULL, PUSH, BrokenFrame, Frame, FrameSocket
from relaax.transport.long_messages import Carrier

SERVICE: str = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name


class GrpcService:
    """The gRPC methods of the service. Errors become status codes."""

    def __init__(
        self, service: ParameterService, on_pulled: Callable[[str, str], None] = lambda peer, worker_id: None
    ) -> None:
        """`on_pulled` is called with the peer and the id of each worker that pulls parameters."""
        self._service = service
        self._on_pulled = on_pulled
        self.Register = _answering(service.register)
        self.Push = _answering(service.push)
        self.Report = _answering(service.report)
        self.Leave = _answering(service.leave)
        self.GetStatus = _answering(lambda request: service.status())
        self.ListWorkers = _answering(lambda request: service.workers())
        self.GetPicture = _answering(lambda request: service.picture())
        self.SetParameter = _answering(service.set_parameter)

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> Carrier[pb.PullResponse]:  # noqa: N802
        with errors_as_status(context):
            self._service.await_update(request, own_thread=False)
            answer = self._service.pull(request)
        if not answer.message.incarnation_ended:
            self._on_pulled(context.peer(), request.worker_id)
        return answer


def _answering(answer: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def method(request: Any, context: grpc.ServicerContext) -> Any:
        with errors_as_status(context):
            return answer(request)

    return method


MAX_HELD_VECTORS = 16
"""Maximum number of vectors that a worker reads at a time, each in a segment of its own."""
_NUMBER_BYTES = 4


def authenticate_worker(
    frames: FrameSocket, core: ParameterServerCore, offers: SharedMemoryOffers, deadline: float
) -> tuple[str, SharedVector]:
    """Authenticate a worker until `deadline` by the monotonic clock.

    Return its id, and memory for its gradients that has the length of the shard's vector. Raises OSError, and
    BrokenFrame if it is not a registered worker or its proof is wrong.
    """
    hello = receive_hello(frames, offers, deadline)
    model = core.model
    if model is None or core.registry.record_call(hello.worker_id) is None:
        raise send_refusal(frames, grpc.StatusCode.NOT_FOUND, "the worker is not registered any more")
    if hello.requested_bytes != _NUMBER_BYTES * model.shard.size:
        raise BrokenFrame(
            f"the worker requested memory of {hello.requested_bytes} bytes, not of {_NUMBER_BYTES * model.shard.size}"
        )
    return hello.worker_id, send_memory(frames, hello, model.shard.size, core.shared)


class ParameterSession(LocalSession):
    """The session of one worker. A vector that was sent is not changed until the worker releases it."""

    def __init__(
        self,
        frames: FrameSocket,
        shared: SharedVector,
        service: ParameterService,
        core: ParameterServerCore,
        calls: CallCounter,
    ) -> None:
        """`shared`: memory for the worker's gradients. The content is valid when a push refers to it."""
        super().__init__(frames)
        self._memory = shared
        self._gradient = shared.memory.data.cast("B").toreadonly()
        self._service = service
        self._core = core
        self._segments = core.segments
        self._calls = calls
        self._copies = VectorPool(shared.memory.size, core.segments.empty)
        self._held: dict[int, FlatVector] = {}  # vectors that the worker reads, by segment
        self._sent: set[int] = set()  # segments whose descriptors the worker has
        self._freed = core.segments.freed

    def serve(self) -> None:
        """Answer requests until the worker disconnects. Raises BrokenFrame and OSError."""
        try:
            while True:
                frame, _ = self.frames.receive()
                for number in frame.numbers:
                    self._held.pop(number, None)
                if frame.kind == LIVE:
                    self._send_live_vector(frame)
                else:
                    self._answer(frame)
        finally:
            # The worker may still run and continue over gRPC with the parameters that it has.
            if (model := self._core.model) is not None:
                model.shard.release_snapshots(self._held.values())
            self._held.clear()
            self._memory.give_back()

    def _answer(self, frame: Frame) -> None:
        if frame.kind not in (PUSH, PULL) or frame.vector > len(self._gradient):
            raise BrokenFrame(f"a frame of kind {frame.kind} with a vector of {frame.vector} bytes is not a request")
        carrier, refused = self._call_service(self._call, frame)
        self._calls.count("Push" if frame.kind == PUSH else "Pull", refused.code if refused else grpc.StatusCode.OK)
        if refused:
            self._refuse(refused)
        else:
            self._send(carrier)

    def _send_live_vector(self, frame: Frame) -> None:
        """Send one of the shard's own vectors, or the reason of a refusal."""
        found, refused = self._call_service(
            lambda asked: self._service.live(pb.PullRequest.FromString(asked.message), asked.segment), frame
        )
        if refused:
            self._refuse(refused)
        else:
            message, vector = found
            segment = self._segments.find(vector)
            assert segment is not None, "such memory is always shared"
            self.frames.send(Frame(0, message.SerializeToString()), segment.descriptor)

    def _call(self, frame: Frame) -> Carrier[Any]:
        if frame.kind == PUSH:
            push = pb.PushRequest.FromString(frame.message)
            return self._service.push(Carrier(push, self._gradient[: frame.vector]))
        pull = pb.PullRequest.FromString(frame.message)
        self._service.await_update(pull, own_thread=True)
        return self._service.pull(pull)

    def _send(self, carrier: Carrier[Any]) -> None:
        second = self._second_segment(carrier)
        head, vector = carrier.message.SerializeToString(), memoryview(carrier.data).nbytes
        if not vector:
            self.frames.send(Frame(0, head))
            return
        shared = self._shared(carrier.data, vector)
        if shared is None:
            raise self._end("no shared memory is left for a vector")
        array, segment = shared
        self._hold(segment, array)
        if second is not None:
            self._hold(second, carrier.target)
        descriptor = None if segment.number in self._sent else segment.descriptor
        self._sent.add(segment.number)
        number = 0 if second is None else second.number
        self.frames.send(Frame(0, head, vector, segment.number, self._freed_segments(), number), descriptor)

    def _second_segment(self, carrier: Carrier[Any]) -> Segment | None:
        """Return the segment of the target network in an answer.

        A frame has one descriptor. If the worker does not have that of the target network yet, remove the target
        network from the answer and return None: the worker then pulls it.
        """
        if not len(carrier.target):
            return None
        segment = self._segments.find(carrier.target)
        if segment is None or segment.number not in self._sent:
            carrier.message.has_target = False
            return None
        return segment

    def _hold(self, segment: Segment, array: FlatVector) -> None:
        """Keep a vector unchanged until the worker releases it. Raises BrokenFrame if it reads too many."""
        if segment.number not in self._held and len(self._held) >= MAX_HELD_VECTORS:
            raise self._end(f"the worker must release a vector: it reads {MAX_HELD_VECTORS} already, the maximum")
        self._held[segment.number] = array

    def _end(self, sentence: str) -> BrokenFrame:
        """Send the worker the reason why this session ends. Return the exception to raise."""
        self.frames.send(Frame(CONNECTION_END, sentence.encode()))
        return BrokenFrame(sentence)

    def _shared(self, data: Any, vector: int) -> tuple[FlatVector, Segment] | None:
        """Return the vector in shared memory, copied if necessary, and its segment; None without free memory."""
        segment = self._segments.find(data) if isinstance(data, np.ndarray) else None
        if segment is not None:
            return data, segment
        copy = self._copies.acquire()
        copy.data.cast("B")[:vector] = memoryview(data).cast("B")
        segment = self._segments.find(copy)
        return None if segment is None else (copy, segment)

    def _freed_segments(self) -> list[int]:
        """Return the segments that the worker has descriptors of and that have been freed."""
        freed = self._segments.freed
        if freed == self._freed:
            return []
        self._freed = freed
        gone = self._sent - self._segments.alive
        self._sent -= gone
        return list(gone)
