"""The replay service over gRPC: conversion of requests to arrays, answers to messages, and errors to status codes."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import grpc
import numpy as np

from relaax import __version__
from relaax.replay import replay_pb2 as pb
from relaax.replay.table.table import Sample
from relaax.replay.wire import (
    CAN_PACK,
    MAX_ITEMS,
    Columns,
    SampleArrays,
    SampleLayout,
    declaration_from_message,
    from_bytes,
    inserted_columns,
    numbers_from_bytes,
    to_bytes,
)
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.replay_server.served_table import ServedTable, WriterInsert, value_errors_as_invalid_request
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import InvalidRequest, errors_as_status
from relaax.transport.long_messages import Carrier

SERVICE: str = pb.DESCRIPTOR.services_by_name["ReplayService"].full_name
_NAME = re.compile(r"[0-9a-f]{32}")
_LARGEST_FRAME_NUMBER = 2**62


class ReplayCalls:
    """Inserts and samples, whose arrays are in messages or in shared memory, and updates of priorities."""

    def __init__(self, service: ReplayService) -> None:
        self.service = service

    def insert(
        self, request: pb.InsertRequest, memory: memoryview | None = None, *, shared: bool = True
    ) -> pb.InsertResponse:
        """Insert the items of a request. Raises InvalidRequest and MemoryExhausted.

        memory: memory with the columns and frames; None if they are in the request.
        shared: whether the caller can still change the memory.
        """
        table = self.service.find(request.incarnation)
        if table is None:
            return pb.InsertResponse(outcome=pb.OUTCOME_INCARNATION_ENDED)
        with value_errors_as_invalid_request():
            answer = self.service.insert(table, _to_writer_insert(table, request, memory, shared=shared))
        outcome: pb.Outcome = pb.OUTCOME_DONE
        if answer.not_yet:
            outcome = pb.OUTCOME_NOT_YET
        elif answer.expected is not None:
            outcome = pb.OUTCOME_OUT_OF_STEP
        elif answer.duplicate:
            outcome = pb.OUTCOME_DUPLICATE
        return pb.InsertResponse(outcome=outcome, expected=answer.expected or 0, overrun=answer.overrun)

    def sample(
        self,
        request: pb.SampleRequest,
        arrays_of: Callable[[SampleLayout, int], SampleArrays] | None = None,
    ) -> tuple[pb.SampleResponse, ServedTable | None]:
        """Update priorities, and draw items; return the answer, and the table if items were drawn.

        Raises InvalidRequest.

        arrays_of: returns the arrays in shared memory to which a number of items are written, or raises ValueError;
            None to put the items into the answer.
        """
        if (new := sum(len(update.keys) for update in request.updates) // 8) > MAX_ITEMS:
            raise InvalidRequest(f"a sample request may have at most {MAX_ITEMS} new priorities, not {new}")
        for update in request.updates:
            self.update_priorities(update)
        table = self.service.find(request.incarnation)
        if table is None:
            return pb.SampleResponse(incarnation_ended=True), None
        if not request.count and arrays_of is None:
            return pb.SampleResponse(state=_to_state_message(table)), None
        table.check_sample(request.count)
        with value_errors_as_invalid_request():
            arrays = None if arrays_of is None else arrays_of(table.sample_layout, request.count)
            columns = None if arrays is None else arrays.columns
            sample = self.service.sample(table, request.count, _wait_seconds(request.wait), columns)
        if sample is None:
            return pb.SampleResponse(not_yet=True, state=_to_state_message(table)), None
        response = pb.SampleResponse(state=_to_state_message(table, sample))
        if arrays is not None:
            arrays.keys[:], arrays.probabilities[:], arrays.ages[:] = sample.keys, sample.probabilities, sample.ages
            return response, table
        response.keys, response.ages = to_bytes(sample.keys), to_bytes(sample.ages)
        response.probabilities = to_bytes(sample.probabilities)
        for name, column in sample.columns.items():  # the constructor would copy the data once more
            response.columns.add(name=name, data=to_bytes(column))
        return response, table

    def update_priorities(self, request: pb.UpdatePrioritiesRequest) -> int:
        """Update priorities; return how many were applied. Raises InvalidRequest."""
        count = len(request.keys) // 8
        if count > MAX_ITEMS:
            raise InvalidRequest(f"a call can update at most {MAX_ITEMS} priorities, not {count}")
        with value_errors_as_invalid_request():
            keys = numbers_from_bytes(request.keys, "uint64", "keys", count)
            priorities = numbers_from_bytes(request.priorities, "float64", "priorities", count)
            return self.service.update_priorities(request.incarnation, keys, priorities)


class ReplayGrpcService:
    """The gRPC servicer of a `ReplayService`."""

    def __init__(self, service: ReplayService, offers: SharedMemoryOffers) -> None:
        self._service = service
        self._calls = ReplayCalls(service)
        self._offers = offers

    def Register(  # noqa: N802
        self, request: pb.ReplayServiceRegisterRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceRegisterResponse:
        with errors_as_status(context), value_errors_as_invalid_request():
            declaration = declaration_from_message(request.table)
            table = self._service.register(declaration, request.session, request.client)
        name = uuid.uuid4().hex
        offer = self._offers.offer(name)
        return pb.ReplayServiceRegisterResponse(
            incarnation=table.incarnation,
            shard=self._service.shard,
            shards=self._service.shards,
            bytes=table.bytes,
            state=_to_state_message(table),
            shared_memory=pb.ReplayMemoryOffer(
                socket=offer.socket, name=name, caller_proof=offer.worker_proof, server_proof=offer.shard_proof
            )
            if offer
            else None,
            earlier_incarnations=table.earlier_incarnations,
            packed=CAN_PACK,
        )

    def Insert(  # noqa: N802
        self, request: Carrier[pb.InsertRequest], context: grpc.ServicerContext
    ) -> pb.InsertResponse:
        with errors_as_status(context):
            memory = request.data if CAN_PACK and len(request.data) else None
            return self._calls.insert(request.message, memory, shared=False)

    def Sample(  # noqa: N802
        self, request: pb.SampleRequest, context: grpc.ServicerContext
    ) -> Carrier[pb.SampleResponse]:
        memory = np.zeros(0, np.uint8)

        def arrays_of(layout: SampleLayout, count: int) -> SampleArrays:
            nonlocal memory
            memory = np.empty(layout.length(count), np.uint8)
            return layout.arrays(count, memory.data)

        with errors_as_status(context):
            if not (request.packed and request.count and CAN_PACK):
                return Carrier(self._calls.sample(request)[0])
            response, table = self._calls.sample(request, arrays_of)
            return Carrier(response, memory.data) if table else Carrier(response)

    def UpdatePriorities(  # noqa: N802
        self, request: pb.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> pb.UpdatePrioritiesResponse:
        with errors_as_status(context):
            return pb.UpdatePrioritiesResponse(applied=self._calls.update_priorities(request))

    def Leave(  # noqa: N802
        self, request: pb.ReplayServiceLeaveRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceLeaveResponse:
        table = self._service.find(request.incarnation)
        if table is not None:
            table.deregister(request.writer)
        return pb.ReplayServiceLeaveResponse()

    def GetStatus(  # noqa: N802
        self, request: pb.ReplayServiceGetStatusRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceGetStatusResponse:
        statistics = sorted(self._service.statistics().items())
        return pb.ReplayServiceGetStatusResponse(
            shard=self._service.shard,
            shards=self._service.shards,
            memory=self._service.memory,
            tables=[pb.TableStatus(name=name, **asdict(numbers)) for name, numbers in statistics],
            version=__version__,
        )


def _to_writer_insert(
    table: ServedTable, request: pb.InsertRequest, memory: memoryview | None, *, shared: bool
) -> WriterInsert:
    """Return an insert with its arrays: views of the request, or from `memory`. Raises ValueError."""
    spec = table.spec
    max_items = min(spec.capacity, MAX_ITEMS)
    if not _NAME.fullmatch(request.writer):
        raise InvalidRequest("writer must be 32 hexadecimal digits")
    if request.count > max_items:
        raise InvalidRequest(f"an insert may have at most {max_items} items, not {request.count}")
    if max(request.first_frame, request.keep_from) > _LARGEST_FRAME_NUMBER:
        raise InvalidRequest(f"frame numbers must be at most {_LARGEST_FRAME_NUMBER}")
    columns: Columns
    frames: Any = None
    if memory is not None:
        columns, frames = table.layout.checked_arrays(request.count, memory, copied=shared)
    else:
        if spec.frame is not None:
            count = len(request.frames) // math.prod(spec.frame)
            frames = from_bytes(request.frames, (spec.frame, np.dtype(np.uint8)), count, "frames")
        elif request.frames:
            raise InvalidRequest(
                f"table {spec.name!r} has no frames, but the request has {len(request.frames)} bytes of them"
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
        wait=_wait_seconds(request.wait),
        force=request.force,
        leaving=request.leaving,
    )


def _to_state_message(table: ServedTable, sample: Sample | None = None) -> pb.TableState:
    """Return the state of a table, at present or at the time of `sample`."""
    return pb.TableState(
        size=sample.size if sample else table.size,
        total_priority=sample.total_priority if sample else table.total_priority,
        begun=table.has_min_size,
        inserts=table.limiter.inserts,
        samples=table.limiter.samples,
    )


def _wait_seconds(requested: float) -> float:
    """Return the requested seconds to wait; 0 for NaN and negative values."""
    return requested if requested > 0 else 0.0
