"""Errors that services answer with, whatever transport a request came by."""

from __future__ import annotations


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
