"""Sessions of local writers and samplers: inserts are read from shared memory, and samples are written to it."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from relaax.replay import replay_pb2 as pb
from relaax.replay.wire import (
    INSERT_NUMBERS,
    MAX_BATCHES,
    MAX_MESSAGE,
    MAX_PENDING_INSERTS,
    SampleArrays,
    SampleLayout,
)
from relaax.server.ports.local_session import (
    LocalSession,
    SharedMemoryOffers,
    SharedVector,
    receive_hello,
    send_memory,
    send_refusal,
)
from relaax.server.ports.port import CallCounter
from relaax.server.ports.shared_budget import Loan, SharedBudget, no_memory_left
from relaax.server.replay_server.grpc_service import ReplayCalls
from relaax.server.replay_server.service import ReplayService
from relaax.transport.frames import CONNECTION_END, INSERT, SAMPLE, UPDATE, BrokenFrame, Frame, FrameSocket

MAX_CONNECTIONS = 1024
"""Maximum number of sessions; further callers are refused and use gRPC. Each session has a thread."""
_NUMBER_BYTES = 4


def replay_admission(
    service: ReplayService, offers: SharedMemoryOffers, calls: CallCounter, budget: SharedBudget
) -> Callable[[FrameSocket, float], tuple[str, ReplaySession]]:
    """Return the function that authenticates a caller and opens its session, for `LocalServer`.

    calls: counter of answered calls.
    """

    def admit(frames: FrameSocket, deadline: float) -> tuple[str, ReplaySession]:
        hello = receive_hello(frames, offers, deadline)
        if hello.requested_bytes != _NUMBER_BYTES * INSERT_NUMBERS:
            raise BrokenFrame(
                f"the caller requested memory of {hello.requested_bytes} bytes, not of {_NUMBER_BYTES * INSERT_NUMBERS}"
            )
        if offers.connected() >= MAX_CONNECTIONS:
            raise send_refusal(
                frames,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the replay server already has {MAX_CONNECTIONS} local connections",
            )
        shared = send_memory(frames, hello, INSERT_NUMBERS, budget)
        return uuid.uuid4().hex, ReplaySession(frames, shared, service, calls)  # a caller may have several sessions

    return admit


@dataclass(slots=True)
class _Batch:
    """Memory for a sample, with the arrays of the last one there."""

    memory: memoryview
    loan: Loan
    count: int = 0
    arrays: SampleArrays | None = None
    layout: SampleLayout | None = None

    def arrays_of(self, layout: SampleLayout, count: int) -> SampleArrays:
        """Return the arrays of a sample of `count` items. Raises ValueError if they do not fit."""
        if self.arrays is None or self.count != count or self.layout is not layout:
            self.arrays, self.count, self.layout = layout.arrays(count, self.memory), count, layout
        return self.arrays


class ReplaySession(LocalSession):
    """The session of one local writer or sampler.

    Each sample is written to a segment that the caller has marked as free, or to a new segment. Each insert is in one
    of `MAX_PENDING_INSERTS` parts of the shared memory, and may arrive before the previous one is answered. Updates of
    priorities are not answered.
    """

    def __init__(self, frames: FrameSocket, shared: SharedVector, service: ReplayService, calls: CallCounter) -> None:
        """`shared`: memory to which the caller writes items; a part is valid when an insert refers to it."""
        super().__init__(frames)
        self._shared = shared
        self._inserts = shared.memory.data.cast("B").toreadonly()
        self._service = ReplayCalls(service)
        self._calls = calls
        self._batches: dict[int, _Batch] = {}
        self._numbers = itertools.count(1)

    def serve(self) -> None:
        try:
            self._serve()
        finally:
            self._free(list(self._batches))
            self._shared.give_back()

    def _serve(self) -> None:
        while True:
            frame, _ = self.frames.receive()
            self._free(frame.numbers)
            if frame.kind == INSERT and frame.vector <= MAX_MESSAGE and frame.segment < MAX_PENDING_INSERTS:
                self._answer_insert(frame)
            elif frame.kind == SAMPLE and (frame.segment in self._batches or not frame.segment):
                self._answer_sample(frame)
            elif frame.kind == UPDATE:
                self._update(frame)
            else:
                raise BrokenFrame(
                    f"frame of kind {frame.kind}, {frame.vector} bytes, segment {frame.segment} is not a request"
                )

    def _free(self, numbers: Iterable[int]) -> None:
        """Return the memory of released samples to the budget."""
        for number in numbers:
            if (batch := self._batches.pop(number, None)) is not None:
                self._shared.budget.give_back(batch.loan)

    def _answer_insert(self, frame: Frame) -> None:
        answer = self._answer("Insert", self._insert, frame)
        if answer is not None:
            self.frames.send(Frame(0, answer.SerializeToString()))

    def _answer_sample(self, frame: Frame) -> None:
        descriptor = None
        if not frame.segment:
            number, descriptor = self._new_segment(frame.vector)
            frame = frame._replace(segment=number)
        try:
            answer = self._answer("Sample", self._sample, frame, () if descriptor is None else [frame.segment])
            if answer is not None:
                message, length = answer
                self.frames.send(Frame(0, message.SerializeToString(), length, frame.segment), descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _update(self, frame: Frame) -> None:
        """Update priorities. Raises BrokenFrame if they are refused, because there is no answer."""
        _, refused = self._call_service(self._update_priorities, frame)
        self._calls.count("UpdatePriorities", refused.code if refused else grpc.StatusCode.OK)
        if refused:
            raise BrokenFrame(refused.sentence)

    def _answer(self, name: str, method: Callable[[Frame], Any], frame: Frame, new: Iterable[int] = ()) -> Any:
        """Return the answer to a request. If it was refused, free the `new` segments and return None."""
        answer, refused = self._call_service(method, frame)
        self._calls.count(name, refused.code if refused else grpc.StatusCode.OK)
        if refused:
            self._free(new)
            self._refuse(refused)
            return None
        return answer

    def _new_segment(self, length: int) -> tuple[int, int]:
        """Create a segment that only the server can write to; return its number and descriptor."""
        if not 0 < length <= 2 * MAX_MESSAGE or len(self._batches) >= MAX_BATCHES:
            raise BrokenFrame(
                f"invalid request for a segment of {length} bytes with {len(self._batches)} segments in use"
            )
        try:
            size = -(-length // _NUMBER_BYTES)
            loan, vector = self._shared.budget.lend(size, read_only=True, user=self.frames)
        except OSError as error:
            sentence = no_memory_left(error)
            self.frames.send(Frame(CONNECTION_END, sentence.encode()))
            raise BrokenFrame(sentence) from None
        number = next(self._numbers)
        self._batches[number] = _Batch(vector.data.cast("B"), loan)
        return number, loan.shared_descriptor

    def _insert(self, frame: Frame) -> pb.InsertResponse:
        begin = frame.segment * MAX_MESSAGE
        request = pb.InsertRequest.FromString(frame.message)
        return self._service.insert(request, self._inserts[begin : begin + frame.vector])

    def _update_priorities(self, frame: Frame) -> None:
        self._service.update_priorities(pb.UpdatePrioritiesRequest.FromString(frame.message))

    def _sample(self, frame: Frame) -> tuple[pb.SampleResponse, int]:
        """Return an answer, and the length of the sample in memory in bytes."""
        request = pb.SampleRequest.FromString(frame.message)
        response, table = self._service.sample(request, self._batches[frame.segment].arrays_of)
        return response, table.sample_layout.length(request.count) if table else 0
