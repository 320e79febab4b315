"""Serve the replay service by gRPC: bytes become arrays once their lengths are checked, errors status codes."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import asdict

import grpc

from relaax import __version__
from relaax.replay import replay_pb2 as pb
from relaax.replay.messages import declaration_from_message
from relaax.replay.wire import MAX_ITEMS, numbers_from, to_bytes
from relaax.server.ports.local_talk import SharedMemoryOffers
from relaax.server.replay_server.requests import insert_of_message, insert_response, seconds, state_of
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import InvalidRequest, errors_as_status

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
