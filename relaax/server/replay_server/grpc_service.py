"""Serve the replay service by gRPC: bytes become arrays once their lengths are checked, errors status codes."""

from __future__ import annotations

import contextlib
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax import __version__
from relaax.replay import replay_pb2 as pb
from relaax.replay.table.table import Sample
from relaax.replay.wire import MAX_ITEMS, declaration_from_message, from_bytes, inserted_columns, numbers_from, to_bytes
from relaax.server.grpc_port.status_codes import errors_as_status
from relaax.server.local_port.offers import SharedMemoryOffers
from relaax.server.replay_server.held_table import HeldTable, InsertAnswer, WriterInsert
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import InvalidRequest

_NAME = re.compile(r"[0-9a-f]{32}")
_LARGEST_FRAME_NUMBER = 2**62


def insert_of_message(held: HeldTable, request: pb.InsertRequest) -> WriterInsert:
    """Return an insert with its arrays, views of the request's bytes. Raises ValueError and InvalidRequest."""
    spec = held.spec
    _check_insert(held, request)
    frames = None
    if spec.frame is not None:
        count = len(request.frames) // math.prod(spec.frame)
        frames = from_bytes(request.frames, (spec.frame, np.dtype(np.uint8)), count, "frames")
    elif request.frames:
        raise InvalidRequest(f"no field of {spec.name!r} is a stack of frames, and {len(request.frames)} bytes came")
    return _insert(request, inserted_columns(spec, request.count, request.columns), frames)


def insert_of_memory(held: HeldTable, request: pb.InsertRequest, memory: memoryview) -> WriterInsert:
    """Return an insert whose columns and frames lie in memory that the caller can write to.

    Raises ValueError and InvalidRequest.
    """
    spec = held.spec
    _check_insert(held, request)
    columns, frames = held.layout.owned(request.count, memory)
    return _insert(request, columns, None if spec.frame is None else frames)


def insert_response(answer: InsertAnswer) -> pb.InsertResponse:
    """Return what became of an insert."""
    outcome: pb.Outcome = pb.OUTCOME_DONE
    if answer.not_yet:
        outcome = pb.OUTCOME_NOT_YET
    elif answer.expected is not None:
        outcome = pb.OUTCOME_OUT_OF_STEP
    elif answer.duplicate:
        outcome = pb.OUTCOME_DUPLICATE
    return pb.InsertResponse(outcome=outcome, expected=answer.expected or 0, overrun=answer.overrun)


def state_of(held: HeldTable, sample: Sample | None = None) -> pb.TableState:
    """Return how a table stands, or stood when it was drawn from."""
    return pb.TableState(
        size=sample.size if sample else held.size,
        total_priority=sample.total_priority if sample else held.total_priority,
        begun=held.begun,
        inserts=held.limiter.inserts,
        samples=held.limiter.samples,
    )


def seconds(wish: float) -> float:
    """Return a wish to wait as a number that is one: what is not, waits for nothing."""
    return wish if wish > 0 else 0.0


def _check_insert(held: HeldTable, request: pb.InsertRequest) -> None:
    most = min(held.spec.capacity, MAX_ITEMS)
    if not _NAME.fullmatch(request.writer):
        raise InvalidRequest("writer must be 32 hexadecimal digits")
    if request.count > most:
        raise InvalidRequest(f"{request.count} items at once are too many; {most} are the most")
    if max(request.first_frame, request.keep_from) > _LARGEST_FRAME_NUMBER:
        raise InvalidRequest(f"frames are numbered up to {_LARGEST_FRAME_NUMBER}")


def _insert(
    request: pb.InsertRequest, columns: Mapping[str, npt.NDArray[Any]], frames: npt.NDArray[np.uint8] | None
) -> WriterInsert:
    given = request.priorities
    return WriterInsert(
        writer=request.writer,
        sequence=request.sequence,
        count=request.count,
        columns=columns,
        priorities=numbers_from(given, "float64", "priorities", request.count) if given else None,
        frames=frames,
        first_frame=request.first_frame,
        keep_from=request.keep_from,
        wait=seconds(request.wait),
        force=request.force,
        leaving=request.leaving,
    )


SERVICE: str = pb.DESCRIPTOR.services_by_name["ReplayService"].full_name
_FLOAT64 = "float64"


class ReplayGrpcService:
    """Pass each gRPC call to a `ReplayService`."""

    def __init__(self, service: ReplayService, offers: SharedMemoryOffers) -> None:
        self._service = service
        self._offers = offers

    def Register(  # noqa: N802
        self, request: pb.ReplayServiceRegisterRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceRegisterResponse:
        with _refusals(context):
            declaration = declaration_from_message(request.table)
            held = self._service.register(declaration, request.session, request.client)
        name = uuid.uuid4().hex
        offer = self._offers.offer(name)
        return pb.ReplayServiceRegisterResponse(
            incarnation=held.incarnation,
            shard=self._service.shard,
            shards=self._service.shards,
            bytes=held.bytes,
            state=state_of(held),
            shared_memory=pb.ReplayMemoryOffer(
                socket=offer.socket, name=name, caller_proof=offer.worker_proof, server_proof=offer.shard_proof
            )
            if offer
            else None,
            earlier_incarnations=held.earlier,
        )

    def Insert(self, request: pb.InsertRequest, context: grpc.ServicerContext) -> pb.InsertResponse:  # noqa: N802
        held = self._service.find(request.incarnation)
        if held is None:
            return pb.InsertResponse(outcome=pb.OUTCOME_INCARNATION_ENDED)
        with _refusals(context):
            answer = self._service.insert(held, insert_of_message(held, request))
        return insert_response(answer)

    def Sample(self, request: pb.SampleRequest, context: grpc.ServicerContext) -> pb.SampleResponse:  # noqa: N802
        held = self._service.find(request.incarnation)
        if held is None:
            return pb.SampleResponse(incarnation_ended=True)
        if not request.count:
            return pb.SampleResponse(state=state_of(held))
        with _refusals(context):
            sample = self._service.sample(held, request.count, seconds(request.wait))
        if sample is None:
            return pb.SampleResponse(not_yet=True, state=state_of(held))
        response = pb.SampleResponse(
            keys=to_bytes(sample.keys),
            probabilities=to_bytes(sample.probabilities),
            ages=to_bytes(sample.ages),
            state=state_of(held, sample),
        )
        for name, column in sample.columns.items():  # what is given to the constructor is copied once more
            response.columns.add(name=name, data=to_bytes(column))
        return response

    def UpdatePriorities(  # noqa: N802
        self, request: pb.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> pb.UpdatePrioritiesResponse:
        count = len(request.keys) // 8
        with _refusals(context):
            if count > MAX_ITEMS:
                raise InvalidRequest(f"{count} priorities at once are too many; {MAX_ITEMS} are the most")
            keys = numbers_from(request.keys, "uint64", "keys", count)
            priorities = numbers_from(request.priorities, _FLOAT64, "priorities", count)
            applied = self._service.update_priorities(request.incarnation, keys, priorities)
        return pb.UpdatePrioritiesResponse(applied=applied)

    def Leave(  # noqa: N802
        self, request: pb.ReplayServiceLeaveRequest, context: grpc.ServicerContext
    ) -> pb.ReplayServiceLeaveResponse:
        held = self._service.find(request.incarnation)
        if held is not None:
            held.leave(request.writer)
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


@contextlib.contextmanager
def _refusals(context: grpc.ServicerContext) -> Iterator[None]:
    with errors_as_status(context):
        try:
            yield
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
