"""Errors that services return over any transport, and their status codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import grpc


class ServiceError(Exception):
    """A refused request. The message is for the caller; each subclass has a status code."""


class InvalidRequest(ServiceError):
    """The request is one that no correct caller sends."""


class NotAllowedNow(ServiceError):
    """The request does not fit the model or table, the worker's role, or the worker's earlier requests."""


class UnknownWorker(ServiceError):
    """The worker is not registered in this incarnation."""


class MemoryExhausted(ServiceError):
    """The request needs more memory than is available."""


class TryAgain(ServiceError):
    """The model is temporarily unavailable; the caller may retry."""


_CODES: dict[type[ServiceError], grpc.StatusCode] = {
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    NotAllowedNow: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownWorker: grpc.StatusCode.NOT_FOUND,
    MemoryExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TryAgain: grpc.StatusCode.UNAVAILABLE,
}


def status_code(error: ServiceError) -> grpc.StatusCode:
    """Return the status code of an error. Frames of shared memory carry its number."""
    return _CODES[type(error)]


@contextlib.contextmanager
def errors_as_status(context: grpc.ServicerContext) -> Iterator[None]:
    """Abort a call with the status code of a ServiceError that is raised inside."""
    try:
        yield
    except ServiceError as error:
        context.abort(status_code(error), str(error))
