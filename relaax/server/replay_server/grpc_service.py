"""Serve the replay service: requests are checked and become arrays, answers become messages, errors status codes."""

from __future__ import annotations

import math
import re
import uuid
from dataclasses import asdict
from typing import Any

import grpc
import numpy as np

from relaax import __version__
from relaax.replay import replay_pb2 as pb
from relaax.replay.table.table import Sample
from relaax.replay.wire import (
    MAX_ITEMS,
    Columns,
    declaration_from_message,
    from_bytes,
    inserted_columns,
    numbers_from_bytes,
    to_bytes,
)
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.replay_server.held_table import HeldTable, WriterInsert, value_errors_refused
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import InvalidRequest, errors_as_status

SERVICE: str = pb.DESCRIPTOR.services_by_name["ReplayService"].full_name
_NAME = re.compile(r"[0-9a-f]{32}")
_LARGEST_FRAME_NUMBER = 2**62


class ReplayCalls:
    """The calls whose arrays go through messages or through memory, whatever the transport."""

    def __init__(self, service: ReplayService) -> None:
        self.service = service

    def insert(self, request: pb.InsertRequest, memory: memoryview | None = None) -> pb.InsertResponse:
        """Insert the items of a request. `memory`: where columns and frames lie, if the caller can write there.

        Raises InvalidRequest and MemoryExhausted.
        """
        held = self.service.find(request.incarnation)
        if held is None:
            return pb.InsertResponse(outcome=pb.OUTCOME_INCARNATION_ENDED)
        with value_errors_refused():
            answer = self.service.insert(held, _insert_of(held, request, memory))
        outcome: pb.Outcome = pb.OUTCOME_DONE
        if answer.not_yet:
            outcome = pb.OUTCOME_NOT_YET
        elif answer.expected is not None:
            outcome = pb.OUTCOME_OUT_OF_STEP
        elif answer.duplicate:
            outcome = pb.OUTCOME_DUPLICATE
        return pb.InsertResponse(outcome=outcome, expected=answer.expected or 0, overrun=answer.overrun)

    def sample(
        self, request: pb.SampleRequest, memory: memoryview | None = None
    ) -> tuple[pb.SampleResponse, HeldTable | None]:
        """Draw items; return an answer, and the table if something was drawn. `memory`: where it goes, if not there.

        Raises InvalidRequest.
        """
        held = self.service.find(request.incarnation)
        if held is None:
            return pb.SampleResponse(incarnation_ended=True), None
        if not request.count and memory is None:
            return pb.SampleResponse(state=_state_of(held)), None
        with value_errors_refused():
            there = None if memory is None else held.sample_layout.arrays(request.count, memory)
            columns = None if there is None else there.columns
            sample = self.service.sample(held, request.count, _seconds(request.wait), columns)
        if sample is None:
            return pb.SampleResponse(not_yet=True, state=_state_of(held)), None
        response = pb.SampleResponse(state=_state_of(held, sample))
        if there is not None:
            there.keys[:], there.probabilities[:], there.ages[:] = sample.keys, sample.probabilities, sample.ages
            return response, held
        response.keys, response.ages = to_bytes(sample.keys), to_bytes(sample.ages)
        response.probabilities = to_bytes(sample.probabilities)
        for name, column in sample.columns.items():  # what is given to the constructor is copied once more
            response.columns.add(name=name, data=to_bytes(column))
        return response, held


class ReplayGrpcService:
    """Pass each gRPC call to a `ReplayService`."""

    def __init__(self, service: ReplayService, offers: SharedMemoryOffers) -> None:
        self._service = service
        self._calls = ReplayCalls(service)
        self._offers = offers

    def Register(  # noqa: N802
        self, request: pb.ReplayServiceRegisterRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceRegisterResponse:
        with errors_as_status(context), value_errors_refused():
            declaration = declaration_from_message(request.table)
            held = self._service.register(declaration, request.session, request.client)
        name = uuid.uuid4().hex
        offer = self._offers.offer(name)
        return pb.ReplayServiceRegisterResponse(
            incarnation=held.incarnation,
            shard=self._service.shard,
            shards=self._service.shards,
            bytes=held.bytes,
            state=_state_of(held),
            shared_memory=pb.ReplayMemoryOffer(
                socket=offer.socket, name=name, caller_proof=offer.worker_proof, server_proof=offer.shard_proof
            )
            if offer
            else None,
            earlier_incarnations=held.earlier,
        )

    def Insert(self, request: pb.InsertRequest, context: grpc.ServicerContext) -> pb.InsertResponse:  # noqa: N802
        with errors_as_status(context):
            return self._calls.insert(request)

    def Sample(self, request: pb.SampleRequest, context: grpc.ServicerContext) -> pb.SampleResponse:  # noqa: N802
        with errors_as_status(context):
            return self._calls.sample(request)[0]

    def UpdatePriorities(  # noqa: N802
        self, request: pb.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> pb.UpdatePrioritiesResponse:
        count = len(request.keys) // 8
        with errors_as_status(context), value_errors_refused():
            if count > MAX_ITEMS:
                raise InvalidRequest(f"{count} priorities at once are too many; {MAX_ITEMS} are the most")
            keys = numbers_from_bytes(request.keys, "uint64", "keys", count)
            priorities = numbers_from_bytes(request.priorities, "float64", "priorities", count)
            applied = self._service.update_priorities(request.incarnation, keys, priorities)
        return pb.UpdatePrioritiesResponse(applied=applied)

    def Leave(  # noqa: N802
        self, request: pb.ReplayServiceLeaveRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceLeaveResponse:
        held = self._service.find(request.incarnation)
        if held is not None:
            held.deregister(request.writer)
        return pb.ReplayServiceLeaveResponse()

    def GetStatus(  # noqa: N802
        self, request: pb.ReplayServiceGetStatusRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceGetStatusResponse:
        tallies = sorted(self._service.tallies().items())
        return pb.ReplayServiceGetStatusResponse(
            shard=self._service.shard,
            shards=self._service.shards,
            memory=self._service.memory,
            tables=[pb.TableStatus(name=name, **asdict(numbers)) for name, numbers in tallies],
            version=__version__,
        )


def _insert_of(held: HeldTable, request: pb.InsertRequest, memory: memoryview | None) -> WriterInsert:
    """Return an insert with its arrays: views of the request's bytes, or of `memory`. Raises ValueError."""
    spec = held.spec
    most = min(spec.capacity, MAX_ITEMS)
    if not _NAME.fullmatch(request.writer):
        raise InvalidRequest("writer must be 32 hexadecimal digits")
    if request.count > most:
        raise InvalidRequest(f"{request.count} items at once are too many; {most} are the most")
    if max(request.first_frame, request.keep_from) > _LARGEST_FRAME_NUMBER:
        raise InvalidRequest(f"frames are numbered up to {_LARGEST_FRAME_NUMBER}")
    columns: Columns
    frames: Any = None
    if memory is not None:
        columns, frames = held.layout.copied_arrays(request.count, memory)
    else:
        if spec.frame is not None:
            count = len(request.frames) // math.prod(spec.frame)
            frames = from_bytes(request.frames, (spec.frame, np.dtype(np.uint8)), count, "frames")
        elif request.frames:
            raise InvalidRequest(
                f"no field of {spec.name!r} is a stack of frames, and {len(request.frames)} bytes came"
            )
        columns = inserted_columns(spec, request.count, request.columns)
    given = request.priorities
    return WriterInsert(
        writer=request.writer,
        sequence=request.sequence,
        count=request.count,
        columns=columns,
        priorities=numbers_from_bytes(given, "float64", "priorities", request.count) if given else None,
        frames=None if spec.frame is None else frames,
        first_frame=request.first_frame,
        keep_from=request.keep_from,
        wait=_seconds(request.wait),
        force=request.force,
        leaving=request.leaving,
    )


def _state_of(held: HeldTable, sample: Sample | None = None) -> pb.TableState:
    """Return the state of a table, now or when it was drawn from."""
    return pb.TableState(
        size=sample.size if sample else held.size,
        total_priority=sample.total_priority if sample else held.total_priority,
        begun=held.begun,
        inserts=held.limiter.inserts,
        samples=held.limiter.samples,
    )


def _seconds(wish: float) -> float:
    """Return a wish to wait as a number; NaN waits for nothing."""
    return wish if wish > 0 else 0.0
