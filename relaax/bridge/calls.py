"""gRPC calls that wait for a server which is away, for a bounded time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
import tenacity

from relaax.bridge.base import BridgeError, BridgeUnavailable

_log = logging.getLogger(__name__)
_Response = TypeVar("_Response")

_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def is_away(error: BaseException) -> bool:
    """Whether the same call may succeed later: the server is away, slow or stopping, or the connection was cut."""
    if not isinstance(error, grpc.RpcError):
        return False
    code: grpc.StatusCode = error.code()
    return code in _AWAY or (code is grpc.StatusCode.INTERNAL and "RST_STREAM" in (error.details() or ""))


class Calls:
    """Makes one call at a time, each with a deadline of `timeout` seconds.

    A call that fails because the server is away is made again, the same request, after jittered pauses that grow to
    `max_pause`, until `unavailable_after` seconds have passed.
    """

    def __init__(self, address: str, timeout: float, unavailable_after: float, max_pause: float = 2.0) -> None:
        self._address = address
        self._timeout = timeout
        self._unavailable_after = unavailable_after
        self._max_pause = max_pause

    def __call__(self, method: Callable[..., _Response], request: Any) -> _Response:
        """The response. Raises BridgeUnavailable after the bounded wait, BridgeError where the server refused."""
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            if not is_away(error):
                raise BridgeError(f"parameter server {self._address}: {error.details()}") from None
            _log.warning(
                "parameter server %s is away, waiting up to %g s: %s",
                self._address,
                self._unavailable_after,
                error.details(),
            )
        return self._again(method, request)

    def _again(self, method: Callable[..., _Response], request: Any) -> _Response:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_away),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=self._max_pause),
            stop=tenacity.stop_after_delay(self._unavailable_after),
            reraise=True,
        )
        try:
            response = retrying(method, request, timeout=self._timeout)
        except grpc.RpcError as error:
            if is_away(error):
                raise BridgeUnavailable(
                    f"parameter server {self._address} was away for {self._unavailable_after:g} s: {error.details()}"
                ) from None
            raise BridgeError(f"parameter server {self._address}: {error.details()}") from None
        _log.info("parameter server %s is back", self._address)
        return response
