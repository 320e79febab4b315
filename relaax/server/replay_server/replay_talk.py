"""Serve one writer or sampler of this host: what it inserts is read, and what it draws is written, in shared memory."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc

from relaax.replay import replay_pb2 as pb
from relaax.replay.wire import INSERT_NUMBERS, MAX_BATCHES, MAX_MESSAGE, MAX_PENDING_INSERTS
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
from relaax.transport.frames import CONNECTION_END, INSERT, SAMPLE, BrokenFrame, Frame, FrameSocket

MOST_CONNECTIONS = 1024
"""Maximum number of connections, each with a thread. Further callers use gRPC."""
_NUMBER_BYTES = 4


def replay_let_in(
    service: ReplayService, offers: SharedMemoryOffers, calls: CallCounter, budget: SharedBudget
) -> Callable[[FrameSocket, float], tuple[str, ReplayTalk]]:
    """Return what authenticates a caller, and answers it: see `LocalServer`. `calls` counts what was answered."""

    def let_in(frames: FrameSocket, deadline: float) -> tuple[str, ReplayTalk]:
        hello = receive_hello(frames, offers, deadline)
        if hello.requested_bytes != _NUMBER_BYTES * INSERT_NUMBERS:
            raise BrokenFrame(
                f"{hello.requested_bytes} bytes of memory were requested, not {_NUMBER_BYTES * INSERT_NUMBERS}"
            )
        if offers.connected() >= MOST_CONNECTIONS:
            raise send_refusal(
                frames, grpc.StatusCode.RESOURCE_EXHAUSTED, f"it has {MOST_CONNECTIONS} connections already"
            )
        shared = send_memory(frames, hello, INSERT_NUMBERS, budget)
        return uuid.uuid4().hex, ReplayTalk(frames, shared, service, calls)  # a caller may have several

    return let_in


class _Batch(NamedTuple):
    memory: memoryview
    loan: Loan


class ReplayTalk(LocalSession):
    """Answers the requests of one writer or sampler.

    Each sample goes to a segment that the caller has named as free, or to a new one. Inserts lie in one of
    `MAX_PENDING_INSERTS` parts of their memory, and may come before the former one has its answer.
    """

    def __init__(self, frames: FrameSocket, shared: SharedVector, service: ReplayService, calls: CallCounter) -> None:
        """`shared`: the caller writes items there; the content is valid once an insert names it."""
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
            else:
                raise BrokenFrame(f"kind {frame.kind} with {frame.vector} bytes and {frame.segment} is no question")

    def _free(self, numbers: Iterable[int]) -> None:
        """Give back the memory of samples that the caller has released."""
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

    def _answer(self, name: str, method: Callable[[Frame], Any], frame: Frame, new: Iterable[int] = ()) -> Any:
        """Return the answer to a request; None if it was refused: the caller does not learn of `new` segments."""
        answer, refused = self._call_service(method, frame)
        self._calls.count(name, refused.code if refused else grpc.StatusCode.OK)
        if refused:
            self._free(new)
            self._refuse(refused)
            return None
        return answer

    def _new_segment(self, length: int) -> tuple[int, int]:
        """Return the number of memory of so many bytes, which only this side can write to, and its descriptor."""
        if not 0 < length <= 2 * MAX_MESSAGE or len(self._batches) >= MAX_BATCHES:
            raise BrokenFrame(f"{length} bytes for a sample beside {len(self._batches)} others")
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

    def _sample(self, frame: Frame) -> tuple[pb.SampleResponse, int]:
        """Return an answer, and how many bytes lie in memory."""
        request = pb.SampleRequest.FromString(frame.message)
        response, held = self._service.sample(request, self._batches[frame.segment].memory)
        return response, held.sample_layout.length(request.count) if held else 0
