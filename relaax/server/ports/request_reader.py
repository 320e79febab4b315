"""Limits for the messages of callers, so that a caller that does not send its message cannot occupy a thread."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from relaax.server.ports.guard import OPEN, host_of
from relaax.server.security.strikes import DisconnectionLog

MESSAGE_SECONDS = 15.0
"""Seconds from a call until its message must be complete. A worker does not wait longer for the answer."""
OPEN_SECONDS = 5.0
"""Seconds until the message of a call that needs no token must be complete."""
UNFINISHED = 4
"""Maximum number of incomplete calls of a connection. A worker has one or two."""
OPEN_UNFINISHED = 8
"""Maximum number of incomplete calls that need no token, over all connections. Beyond it, a call of the address
that has the most of them is ended.
"""
THREADS = 80
"""Number of threads of a server, and so of calls that are read or answered at a time. A call occupies a thread while it
is read.
"""
JAM_SECONDS = 10.0
"""Seconds that a call waits for a thread until the server counts as jammed."""

LATE, CROWDED = "late", "crowded"

Handler = Any  # grpc.RpcMethodHandler, or None


@dataclass(slots=True, eq=False)
class _Call:
    method: str
    context: grpc.ServicerContext
    peer: str
    since: float
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self.seconds = OPEN_SECONDS if self.method in OPEN else MESSAGE_SECONDS

    @property
    def name(self) -> str:
        """The method without its service."""
        return self.method.rpartition("/")[2]

    @property
    def host(self) -> str:
        """The host of the caller."""
        return host_of(self.peer)


class RequestReader(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it is generic in its stubs only
    """An interceptor that waits for messages within limits. It must be a server's first, so that it wraps the others.

    gRPC reads the message of a unary call in a thread of the server, without a time limit. Therefore unary calls are
    declared as streams, which are the same on the wire, and read here. A stream ends after `MESSAGE_SECONDS` in all,
    unless it is `lasting`.

    `on_ended` is called with the method and the status of each call that is ended here. `on_message` is called with
    the peer of each call whose message is complete, and whether the call needs a token. `admit` aborts a call that its
    caller must not make, before its message is read.
    """

    def __init__(
        self,
        disconnections: DisconnectionLog,
        on_ended: Callable[[str, grpc.StatusCode], None],
        on_message: Callable[[str, bool], None] = lambda peer, proven: None,
        admit: Callable[[str, grpc.ServicerContext], None] = lambda method, context: None,
        lasting: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        on_admitted: Callable[[str], None] = lambda peer: None,
    ) -> None:
        """`lasting`: methods whose streams have no time limit.

        `on_admitted` is called with the peer of each admitted call that needs a token, before its message is read.
        """
        self._disconnections = disconnections
        self._on_ended = on_ended
        self._on_message = on_message
        self._admit = admit
        self._on_admitted = on_admitted
        self._lasting_methods = lasting
        self._clock = clock
        self._queue: deque[float] = deque()  # arrival times of calls that wait for a thread
        self._lock = threading.Lock()
        self._calls: dict[_Call, None] = {}  # incomplete calls, the oldest first
        self._of_peer: Counter[str] = Counter()
        self._ended: Counter[str] = Counter({LATE: 0, CROWDED: 0})

    @property
    def unfinished(self) -> int:
        """Number of calls with incomplete messages."""
        return len(self._calls)

    @property
    def ended(self) -> dict[str, int]:
        """Number of calls ended so far, by reason: `LATE` or `CROWDED`."""
        with self._lock:
            return dict(self._ended)

    @property
    def jammed(self) -> bool:
        """Whether calls have waited for a thread for `JAM_SECONDS`."""
        return self.waited > JAM_SECONDS

    @property
    def waited(self) -> float:
        """Seconds for which the oldest queued call has waited for a thread; 0 if none is queued."""
        try:
            return self._clock() - self._queue[0]
        except IndexError:
            return 0.0

    def end_late_calls(self) -> None:
        """End calls whose message is late. Called about every second."""
        now = self._clock()
        with self._lock:
            late = [call for call in self._calls if now - call.since > call.seconds]
            for call in late:
                self._drop(call)
        for call in late:
            self._end(call, LATE, f"{call.name} without its message for {call.seconds:g} s")

    def intercept_service(self, continuation: Callable[[Any], Handler], handler_call_details: Any) -> Handler:
        handler = continuation(handler_call_details)
        if handler is None or (handler.request_streaming and not handler.response_streaming):
            return handler  # the handler of `guard`, which refuses a call unread: services have no such methods
        method = handler_call_details.method
        self._queue.append(self._clock())
        if handler.request_streaming:
            behavior = self._lasting if method in self._lasting_methods else self._limited
            return grpc.stream_stream_rpc_method_handler(
                functools.partial(behavior, method, handler.stream_stream),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        behavior = handler.unary_stream if handler.response_streaming else handler.unary_unary
        answered: Any = functools.partial(self._answered, method, behavior, handler.request_deserializer)
        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(answered, response_serializer=handler.response_serializer)
        functools.update_wrapper(answered, behavior)  # keeps the attribute that tells gRPC that Watch needs no thread
        return grpc.stream_stream_rpc_method_handler(answered, response_serializer=handler.response_serializer)

    def _answered(
        self, method: str, behavior: Any, read: Any, messages: Any, context: grpc.ServicerContext, *more: Any
    ) -> Any:
        self._queue.popleft()
        return behavior(_read(read, self._message(method, messages, context), context), context, *more)

    def _lasting(self, method: str, behavior: Any, messages: Any, context: grpc.ServicerContext) -> Iterable[Any]:
        """Limit the first message of a lasting stream. The service limits the others."""
        self._queue.popleft()
        first = self._message(method, messages, context)
        answers: Iterable[Any] = behavior(itertools.chain((first,), messages), context)
        return answers

    def _limited(self, method: str, behavior: Any, messages: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._queue.popleft()
        call = self._start_reading(method, context)
        self._on_message(call.peer, method not in OPEN)
        try:
            yield from behavior(messages, context)
        finally:
            self._finish(call)

    def _message(self, method: str, messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
        """Return the call's only message, or its first one."""
        call = self._start_reading(method, context)
        try:
            message = next(messages, None)
        finally:
            self._finish(call)
        if message is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{call.name} needs a message, but the call has none")
        self._on_message(call.peer, method not in OPEN)
        return message

    def _start_reading(self, method: str, context: grpc.ServicerContext) -> _Call:
        """Return a new incomplete call.

        If its connection has too many incomplete calls, abort the new one. If there are too many incomplete calls that
        need no token, end one of them.
        """
        self._admit(method, context)
        if method not in OPEN:
            self._on_admitted(context.peer())
        call, excess = _Call(method, context, context.peer(), self._clock()), None
        with self._lock:
            refused = self._of_peer[call.peer] >= UNFINISHED
            if not refused:
                self._calls[call] = None
                self._of_peer[call.peer] += 1
                if method in OPEN:
                    excess = self._excess_call()
        if excess is not None:
            self._end(excess, CROWDED, f"{excess.name} without its message while others arrived")
        if refused:
            sentence = f"{UNFINISHED} calls of this connection have not sent their messages: send those first"
            self._record(
                call, CROWDED, f"{call.name} while {UNFINISHED} calls of its connection had not sent their messages"
            )
            self._on_ended(call.name, grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
        return call

    def _excess_call(self) -> _Call | None:
        """If there are too many open calls, remove and return the oldest one of the address with the most."""
        calls = [call for call in self._calls if call.method in OPEN]
        if len(calls) <= OPEN_UNFINISHED:
            return None
        of_host = Counter(call.host for call in calls)
        most = max(of_host.values())
        call = next(call for call in calls if of_host[call.host] == most)
        self._drop(call)
        return call

    def _finish(self, call: _Call) -> None:
        with self._lock:
            self._drop(call)

    def _drop(self, call: _Call) -> None:
        if call in self._calls:
            del self._calls[call]
            self._of_peer[call.peer] -= 1
            if not self._of_peer[call.peer]:
                del self._of_peer[call.peer]

    def _end(self, call: _Call, why: str, what: str) -> None:
        self._record(call, why, what)
        self._on_ended(call.name, grpc.StatusCode.CANCELLED)
        call.context.cancel()  # type: ignore[no-untyped-call]

    def _record(self, call: _Call, why: str, what: str) -> None:
        with self._lock:
            self._ended[why] += 1
        self._disconnections.add(call.host, what)


def _read(read: Callable[[bytes], Any] | None, message: bytes, context: grpc.ServicerContext) -> Any:
    if read is None:
        return message
    try:
        return read(message)
    except DecodeError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request cannot be decoded: {error}")
        raise AssertionError("abort raises") from None
