"""Two transports of the parameter service: gRPC, and shared memory for a worker of this host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from relaax.nn.recycled_memory import VectorPool
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.wire import Carrier
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

SERVICE: str = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name


class GrpcService:
    """The service's gRPC methods: errors become status codes."""

    def __init__(
        self, service: ParameterService, on_pulled: Callable[[str, str], None] = lambda peer, worker_id: None
    ) -> None:
        """`on_pulled` is send_refusal the peer and the id of each worker that fetches parameters."""
        self._service = service
        self._on_pulled = on_pulled
        self.Register = _answering(service.register)
        self.Push = _answering(service.push)
        self.Report = _answering(service.report)
        self.Leave = _answering(service.leave)
        self.GetStatus = _answering(lambda request: service.status())
        self.ListWorkers = _answering(lambda request: service.workers())

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> Carrier[pb.PullResponse]:  # noqa: N802
        with errors_as_status(context):
            answer = self._service.pull(request)
        if not answer.message.incarnation_ended:
            self._on_pulled(context.peer(), request.worker_id)
        return answer


def _answering(answer: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def method(request: Any, context: grpc.ServicerContext) -> Any:
        with errors_as_status(context):
            return answer(request)

    return method


MOST_HELD = 16
"""Vectors that a worker may read at a time, each in a segment of its own."""
_NUMBER_BYTES = 4


def authenticate_worker(
    frames: FrameSocket, core: ParameterServerCore, offers: SharedMemoryOffers, deadline: float
) -> tuple[str, SharedVector]:
    """Authenticate a worker. Return its id and the memory that it writes gradients to, as long as the shard's vector.

    It has until `deadline`, by the monotonic clock. Raises OSError, and BrokenFrame if it is not a registered worker
    that shows its proof.
    """
    hello = receive_hello(frames, offers, deadline)
    model = core.model
    if model is None or core.registry.hear(hello.worker_id) is None:
        raise send_refusal(frames, grpc.StatusCode.NOT_FOUND, "it does not know this worker any more")
    if hello.requested_bytes != _NUMBER_BYTES * model.shard.size:
        raise BrokenFrame(f"memory of {hello.requested_bytes} bytes was asked for, for {model.shard.size} numbers")
    return hello.worker_id, send_memory(frames, hello, model.shard.size, core.shared)


class ParameterSession(LocalSession):
    """The requests of one worker. What it was sent stays as it is until the worker releases it."""

    def __init__(
        self,
        frames: FrameSocket,
        shared: SharedVector,
        service: ParameterService,
        core: ParameterServerCore,
        calls: CallCounter,
    ) -> None:
        """`shared`: the worker writes its gradients there; the content is valid once a push names it."""
        super().__init__(frames)
        self._memory = shared
        self._gradient = shared.memory.data.cast("B").toreadonly()
        self._service = service
        self._core = core
        self._segments = core.segments
        self._calls = calls
        self._copies = VectorPool(shared.memory.size, core.segments.empty)
        self._held: dict[int, FlatVector] = {}  # segments that the worker reads
        self._sent: set[int] = set()  # segments that it has descriptors of
        self._freed = core.segments.freed

    def serve(self) -> None:
        """Answer requests until the worker disconnects. Raises BrokenFrame and OSError."""
        try:
            while True:
                frame, _ = self.frames.receive()
                for number in frame.numbers:
                    self._held.pop(number, None)
                if frame.kind == LIVE:
                    self._hand_over(frame)
                else:
                    self._answer(frame)
        finally:
            # The worker may be there still, and go on by gRPC with the parameters that it has.
            if (model := self._core.model) is not None:
                model.shard.release_snapshots(self._held.values())
            self._held.clear()
            self._memory.give_back()

    def _answer(self, frame: Frame) -> None:
        if frame.kind not in (PUSH, PULL) or frame.vector > len(self._gradient):
            raise BrokenFrame(f"kind {frame.kind} with a vector of {frame.vector} bytes is no question")
        carrier, refused = self._call_service(self._call, frame)
        self._calls.count("Push" if frame.kind == PUSH else "Pull", refused.code if refused else grpc.StatusCode.OK)
        if refused:
            self._refuse(refused)
        else:
            self._send(carrier)

    def _hand_over(self, frame: Frame) -> None:
        """Send one of the shard's own vectors, or the reason why the worker does not get it."""
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
        return self._service.pull(pb.PullRequest.FromString(frame.message))

    def _send(self, carrier: Carrier[Any]) -> None:
        head, vector = carrier.message.SerializeToString(), memoryview(carrier.data).nbytes
        if not vector:
            self.frames.send(Frame(0, head))
            return
        shared = self._shared(carrier.data, vector)
        if shared is None:
            raise self._ended("no memory is left to share")
        array, segment = shared
        if segment.number not in self._held and len(self._held) >= MOST_HELD:
            raise self._ended(f"a worker may read {MOST_HELD} vectors at a time, and this one has released none")
        self._held[segment.number] = array
        descriptor = None if segment.number in self._sent else segment.descriptor
        self._sent.add(segment.number)
        self.frames.send(Frame(0, head, vector, segment.number, self._gone()), descriptor)

    def _ended(self, sentence: str) -> BrokenFrame:
        """Tell the worker that this connection ends, and why."""
        self.frames.send(Frame(CONNECTION_END, sentence.encode()))
        return BrokenFrame(sentence)

    def _shared(self, data: Any, vector: int) -> tuple[FlatVector, Segment] | None:
        """Return the vector in memory that the worker can read, copied if necessary. None without memory."""
        segment = self._segments.find(data) if isinstance(data, np.ndarray) else None
        if segment is not None:
            return data, segment
        copy = self._copies.acquire()
        copy.data.cast("B")[:vector] = memoryview(data).cast("B")
        segment = self._segments.find(copy)
        return None if segment is None else (copy, segment)

    def _gone(self) -> list[int]:
        """Return the segments that the worker has and that no answer will use again."""
        freed = self._segments.freed
        if freed == self._freed:
            return []
        self._freed = freed
        gone = self._sent - self._segments.alive
        self._sent -= gone
        return list(gone)
