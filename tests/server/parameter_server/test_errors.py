from __future__ import annotations

import grpc
import pytest

from relaax.server.parameter_server.service import service
from relaax.server.service_errors import ServiceError, status_code


@pytest.mark.parametrize("kind", ServiceError.__subclasses__())
def test_every_error_has_a_status_code(kind: type[ServiceError]) -> None:
    assert isinstance(status_code(kind("no")), grpc.StatusCode)


def test_errors_have_distinct_status_codes() -> None:
    kinds = ServiceError.__subclasses__()
    assert len({status_code(kind("no")) for kind in kinds}) == len(kinds)


def test_service_module_does_not_import_grpc() -> None:
    assert "grpc" not in vars(service)
