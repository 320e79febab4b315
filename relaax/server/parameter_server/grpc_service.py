"""Serve the parameter service by gRPC: errors become status codes."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.wire import Carrier
from relaax.server.grpc_port.status_codes import errors_as_status
from relaax.server.parameter_server.service import ParameterService

SERVICE: str = pb.DESCRIPTOR.services_by_name["ParameterServerService"].full_name


class GrpcService:
    """Pass each gRPC call to a `ParameterService`.

    Long vectors travel beside their messages: see `relaax.parameters.wire`.
    """

    def __init__(
        self, service: ParameterService, on_pulled: Callable[[str, str], None] = lambda peer, worker_id: None
    ) -> None:
        """`on_pulled` is told the peer and the id of each worker that fetches parameters."""
        self._service = service
        self._on_pulled = on_pulled

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.RegisterResponse:  # noqa: N802
        with errors_as_status(context):
            return self._service.register(request)

    def Push(  # noqa: N802
        self, carrier: Carrier[pb.PushRequest], context: grpc.ServicerContext
    ) -> Carrier[pb.PushResponse]:
        with errors_as_status(context):
            return self._service.push(carrier)

    def Pull(self, request: pb.PullRequest, context: grpc.ServicerContext) -> Carrier[pb.PullResponse]:  # noqa: N802
        with errors_as_status(context):
            answer = self._service.pull(request)
        if not answer.message.incarnation_ended:
            self._on_pulled(context.peer(), request.worker_id)
        return answer

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportResponse:  # noqa: N802
        with errors_as_status(context):
            return self._service.report(request)

    def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveResponse:  # noqa: N802
        with errors_as_status(context):
            return self._service.leave(request)

    def GetStatus(self, request: pb.GetStatusRequest, context: grpc.ServicerContext) -> pb.GetStatusResponse:  # noqa: N802
        return self._service.status()

    def ListWorkers(  # noqa: N802
        self, request: pb.ListWorkersRequest, context: grpc.ServicerContext
    ) -> pb.ListWorkersResponse:
        return self._service.workers()
