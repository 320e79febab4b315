"""Count the calls that a server has answered, by method and status."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import grpc

ANY = "any"
"""The method of a call that was refused whatever its method is."""
Handler = Any  # grpc.RpcMethodHandler, or None


class CallCounter(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it is generic in its stubs only
    """Counts unary calls, and calls that others end and report.

    Methods that the server does not have are not counted: their names are anybody's to choose.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()

    @property
    def calls(self) -> Mapping[tuple[str, str], int]:
        """Calls by method ("Push") and status ("OK")."""
        with self._lock:
            return dict(self._calls)

    def count(self, method: str, code: grpc.StatusCode) -> None:
        """Count a call that ended with this status before it reached its method."""
        with self._lock:
            self._calls[method, code.name] += 1

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        answer = handler.unary_unary

        def counted(request: Any, context: Any) -> Any:
            code = grpc.StatusCode.UNKNOWN
            try:
                response = answer(request, context)
                code = grpc.StatusCode.OK
                return response
            finally:
                code = context.code() or code
                with self._lock:
                    self._calls[method, getattr(code, "name", str(code))] += 1

        return grpc.unary_unary_rpc_method_handler(
            counted,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
