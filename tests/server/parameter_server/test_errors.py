from __future__ import annotations

import grpc
import pytest

from relaax.server.grpc_port.status_codes import status_code
from relaax.server.parameter_server.service import service
from relaax.server.service_errors import ServiceError


@pytest.mark.parametrize("kind", ServiceError.__subclasses__())
def test_every_error_has_a_status_code(kind: type[ServiceError]) -> None:
    assert isinstance(status_code(kind("no")), grpc.StatusCode)


def test_no_two_errors_have_the_same_status_code() -> None:
    kinds = ServiceError.__subclasses__()
    assert len({status_code(kind("no")) for kind in kinds}) == len(kinds)


def test_the_service_does_not_know_grpc() -> None:
    assert "grpc" not in vars(service)
