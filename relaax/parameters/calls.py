"""Parallel gRPC calls to several servers, retried for a bounded time while a server is unavailable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from relaax.backoff import Pauses
from relaax.parameters.interfaces import (
    ParameterServerError,
    ParameterServerUnauthenticated,
    ParameterServerUnavailable,
)
from relaax.transport.channel import Target, authentication_trouble, is_unavailable

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a stub, the request, and the server that receives it."""

    method: Any  # grpc.UnaryUnaryMultiCallable
    request: Any
    target: Target


class NotReady(Exception):
    """A failure after which a later attempt may succeed. The message names what failed."""


class _Unavailable(Exception):
    """A server that is unavailable now and may return. The message is that of gRPC."""

    def __init__(self, address: str, error: grpc.RpcError) -> None:
        super().__init__(error.details() or error.code().name)
        self.address = address


class Calls:
    """Sender of lists of calls, in parallel, with a deadline of `timeout` seconds for each call.

    If a call fails because its server is unavailable, the same request is sent again, after growing pauses, until
    `unavailable_after` seconds have passed. Calls that were answered are not repeated.
    """

    def __init__(self, timeout: float, unavailable_after: float) -> None:
        self.unavailable_after = unavailable_after
        self._timeout = timeout

    def __call__(self, calls: Sequence[Call]) -> list[Any]:
        """Return the responses, in order.

        Raises ParameterServerUnavailable after the bounded wait, and ParameterServerError if a server refuses.
        """
        if len(calls) > 1:
            return self.start(calls)()
        # A blocking call needs one thread less than a future.
        return self._answers(calls, lambda answers: self._attempt(calls, answers))

    def start(self, calls: Sequence[Call]) -> Callable[[], list[Any]]:
        """Send the calls and return a function that waits for the responses. It raises what `__call__` raises."""
        futures = self._send(calls, range(len(calls)))
        return lambda: self._answers(calls, lambda answers: _collect(calls, futures, answers))

    def retry(self, error: type[Exception], attempt: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call `attempt` again while it raises `error`, for up to `unavailable_after` seconds."""
        deadline, pauses = time.monotonic() + self.unavailable_after, Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                return attempt(*arguments)
            except error:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(pauses.next())

    def _answers(self, calls: Sequence[Call], attempt: Callable[[list[Any]], None]) -> list[Any]:
        answers: list[Any] = [None] * len(calls)
        try:
            attempt(answers)
        except _Unavailable as failure:
            wait = self.unavailable_after
            _log.warning("parameter server %s is unavailable, retrying for %g s: %s", failure.address, wait, failure)
            try:
                self.retry(_Unavailable, self._attempt, calls, answers)
            except _Unavailable as last:
                raise ParameterServerUnavailable(
                    f"parameter server {last.address} was unavailable for {wait:g} s: {last}"
                ) from None
            _log.info("parameter server %s is available again", failure.address)
        return answers

    def _attempt(self, calls: Sequence[Call], answers: list[Any]) -> None:
        """Send the calls that have no answer yet. When all have ended, raise the first failure."""
        missing = [index for index, answer in enumerate(answers) if answer is None]
        if len(missing) > 1:
            _collect(calls, self._send(calls, missing), answers)
            return
        (index,) = missing
        try:
            answers[index] = calls[index].method(calls[index].request, timeout=self._timeout)
        except grpc.RpcError as error:
            _raise({index: error}, calls)

    def _send(self, calls: Sequence[Call], indices: Iterable[int]) -> dict[int, Any]:
        return {i: calls[i].method.future(calls[i].request, timeout=self._timeout) for i in indices}


def _collect(calls: Sequence[Call], futures: Mapping[int, Any], answers: list[Any]) -> None:
    """Wait for the futures and fill in `answers`. When all have ended, raise the first failure."""
    errors: dict[int, grpc.RpcError] = {}
    for index, future in futures.items():
        try:
            answers[index] = future.result()
        except grpc.FutureCancelledError:
            errors[index] = future
        except grpc.RpcError as error:
            errors[index] = error
    _raise(errors, calls)


def _raise(errors: Mapping[int, grpc.RpcError], calls: Sequence[Call]) -> None:
    """Raise the first refusal if there is one; else _Unavailable for the first server that is unavailable."""
    for index, failure in errors.items():
        target = calls[index].target
        unauthenticated = authentication_error(failure, target)
        if unauthenticated is not None:
            raise unauthenticated from None
        if not is_unavailable(failure):
            raise ParameterServerError(f"parameter server {target.address}: {failure.details()}") from None
    for index, failure in errors.items():
        raise _Unavailable(calls[index].target.address, failure)


def authentication_error(error: BaseException, target: Target) -> ParameterServerUnauthenticated | None:
    """Return the error to raise if `authentication_trouble` finds a reason for the failure of a call; else None."""
    trouble = authentication_trouble(error, target)
    return None if trouble is None else ParameterServerUnauthenticated(trouble)
