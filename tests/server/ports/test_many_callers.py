"""Many honest callers at once, each over a connection of its own."""

from __future__ import annotations

import contextlib

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Call, Calls
from relaax.parameters.parameter_server_pb2_grpc import ParameterServerServiceStub
from relaax.server.ports.request_reader import UNFINISHED
from relaax.transport.channel import Target, open_channel
from relaax.transport.grpc_options import MAX_PENDING
from support.parameter_servers import running

CONNECTIONS, CALLS = 200, UNFINISHED


def test_calls_of_200_connections_at_once_are_all_answered() -> None:
    """Calls past `MAX_PENDING` are cancelled, and the client retries them."""
    assert CONNECTIONS > MAX_PENDING
    with running() as server, contextlib.ExitStack() as stack:
        target = Target(server.address)
        stubs = [
            ParameterServerServiceStub(stack.enter_context(open_channel(target)))  # type: ignore[no-untyped-call]
            for _ in range(CONNECTIONS)
        ]
        calls = [Call(stub.GetStatus, pb.GetStatusRequest(), target) for stub in stubs for _ in range(CALLS)]
        answers = Calls(timeout=15.0, unavailable_after=60.0)(calls)
    assert all(isinstance(answer, pb.GetStatusResponse) for answer in answers)
