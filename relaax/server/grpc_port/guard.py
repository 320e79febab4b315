"""Authenticate callers of a port by the token that comes with every call, of every service."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc

from relaax.parameters.channel import AUTHORIZATION
from relaax.server.security.strikes import Strikes
from relaax.server.security.tokens import Token

_log = logging.getLogger(__name__)

OPEN = frozenset({"/grpc.health.v1.Health/Check"})
"""Methods that need no token: a health checker has none, and learns only whether the server serves."""
LOGGED = 20
"""Refused calls of one address in a minute, after which no more of them are logged for a minute."""
NO_TOKEN, WRONG_TOKEN = "no token", "wrong token"
_BEARER = "Bearer "


def token_sentences(server: str, key: str, variable: str) -> Mapping[str, str]:
    """Return what is said to callers without the token: `key` and `variable` are where theirs is configured."""
    return {
        NO_TOKEN: f"this {server} asks for a token, and none was shown: set {key} or the environment variable "
        f"{variable}",
        WRONG_TOKEN: f"the token that was shown is not this {server}'s: see {key} and the environment variable "
        f"{variable}",
    }


class Refusals:
    """Ends calls of callers that are not authorized, logs and counts them. Thread-safe."""

    def __init__(self, refused: Callable[[str], None] = lambda peer: None) -> None:
        """`refused` is called with the peer of each call that is ended, by any thread."""
        self._on_refused = refused
        self._strikes = Strikes(LOGGED)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """Refused calls so far, by reason."""
        with self._lock:
            return dict(self._counts)

    def end(self, why: str, sentence: str, context: Any) -> NoReturn:
        """End this call. `why` goes to the log, `sentence` to the caller."""
        peer = context.peer()
        host = host_of(peer)
        with self._lock:
            self._counts[why] += 1
        self._on_refused(peer)
        last = self._strikes.add(host)
        if last:
            _log.warning("refused a call from %s: %s; %d in a minute, not logged for a while", host, why, LOGGED)
        elif not self._strikes.is_out(host):
            _log.warning("refused a call from %s: %s", host, why)
        context.abort(grpc.StatusCode.UNAUTHENTICATED, sentence)
        raise AssertionError("abort raises")


class Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it is generic in its stubs only
    """Ends calls without the token before any of their messages is read. `sentences`: see `token_sentences`."""

    def __init__(self, token: Token, refusals: Refusals, sentences: Mapping[str, str]) -> None:
        self._token = token
        self._endings = {why: _ending(partial(refusals.end, why, said)) for why, said in sentences.items()}

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        if handler_call_details.method in OPEN:
            return continuation(handler_call_details)
        shown = next((value for key, value in handler_call_details.invocation_metadata if key == AUTHORIZATION), None)
        if shown is None:
            return self._endings[NO_TOKEN]
        if not isinstance(shown, str) or not self._token.matches(shown.removeprefix(_BEARER)):
            return self._endings[WRONG_TOKEN]
        return continuation(handler_call_details)


def _ending(end: Callable[[Any], NoReturn]) -> Any:
    """Return a handler that reads nothing. It is for streams: of other calls gRPC reads the request before the handler
    is called.
    """

    def behavior(_messages: Iterator[bytes], context: Any) -> NoReturn:
        end(context)

    return grpc.stream_unary_rpc_method_handler(behavior)


def host_of(peer: str) -> str:
    """Return the host of a peer in gRPC's notation, such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer
