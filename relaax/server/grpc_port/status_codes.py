"""The status codes of the errors that services answer with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc

from relaax.server.service_errors import (
    InvalidRequest,
    MemoryExhausted,
    NotAllowedNow,
    ServiceError,
    TryAgain,
    UnknownWorker,
)

_CODES: dict[type[ServiceError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotAllowedNow: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownWorker: grpc.StatusCode.NOT_FOUND,
    MemoryExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TryAgain: grpc.StatusCode.UNAVAILABLE,
}


def status_code(error: ServiceError) -> grpc.StatusCode:
    """Return the status code of an error; frames of shared memory carry its number."""
    return _CODES[type(error)]


@contextlib.contextmanager
def errors_as_status(context: grpc.ServicerContext) -> Iterator[None]:
    """End a call by the status code of an error that is raised inside."""
    try:
        yield
    except ServiceError as error:
        context.abort(status_code(error), str(error))
