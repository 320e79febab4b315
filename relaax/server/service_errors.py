"""Errors that services answer with, whatever transport a request came by, and their status codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc


class ServiceError(Exception):
    """Refuse a request. The message is a sentence for the caller; each transport has a code for each kind of error."""


class InvalidRequest(ServiceError):
    """Refuse a request that no correct caller makes."""


class NotAllowedNow(ServiceError):
    """Refuse a request that does not fit the model or table, the worker's role, or what the worker sent before."""


class UnknownWorker(ServiceError):
    """Refuse a request of a worker that is not registered in this incarnation."""


class MemoryExhausted(ServiceError):
    """Refuse a request that takes more memory than is left."""


class TryAgain(ServiceError):
    """Refuse a request while the model cannot be used; the caller may repeat it."""


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
