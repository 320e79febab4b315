"""WebSocket between a socket and the protocol, without the socket: an HTTP request, then messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

from websockets.exceptions import InvalidOrigin
from websockets.http11 import Request
from websockets.server import ServerProtocol

from relaax.rlx import HANDSHAKE_FRAME_BYTES, RemoteProtocolError
from relaax.websocket import QUIET, HeldFailure, MessageStream, WebSocketOver

MAX_REQUEST_BYTES = 2**14
"""The longest request, with its header."""
END_OF_REQUEST = b"\r\n\r\n"
HTTP2_REQUEST = b"PRI * HTTP/2.0" + END_OF_REQUEST
"""The beginning of a client of HTTP/2, which gRPC is."""
LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?")
"""Pages that this computer shows itself."""

NO_PAGES = (
    "This port speaks RLX, the protocol by which environments reach the agents of RELAAX, over TCP or over WebSocket "
    "(binary messages). It has no pages."
)
NO_GRPC = (
    "This port speaks RLX and no gRPC: relaax-rlx-server.parameter_server and replay_server name the ports that do, "
    "7000 and 7002 by default."
)
NOT_ALLOWED = (
    "Pages of the origin {} may not connect to this server: relaax-rlx-server.origins lists those that may, beside "
    "pages of localhost."
)
TOO_LONG = f"The request is longer than {MAX_REQUEST_BYTES} bytes."
NO_REQUEST = f"This is no HTTP request that can be understood. {NO_PAGES}"


class HttpRefused(Exception):
    """An HTTP request was refused. The message says why."""


def begins_with_http(first: bytes) -> bool:
    """Return whether a connection that begins with these bytes speaks HTTP. Methods are words in capitals.

    No RLX begins so: it would be the length of a first frame of more than a gigabyte.
    """
    return first[:1].isalpha() and first[:1].isupper()


class _ServerEnd(HeldFailure, ServerProtocol):
    """The library's end of a server that lets RLX have the last word."""


class WebSocketLayer:
    """The server's end of one connection that began with an HTTP request. `origins`: those allowed beside loopback."""

    def __init__(self, origins: Sequence[str], refusal: str = "") -> None:
        """`refusal`: why every request is refused; empty if none is for that."""
        self._refusal = refusal
        self._protocol = _ServerEnd(
            origins=[None, LOOPBACK_ORIGIN, *origins],  # type: ignore[list-item]  # Origin is a str
            max_size=HANDSHAKE_FRAME_BYTES,
            logger=QUIET,
        )
        self._head = bytearray()
        self._messages: MessageStream | None = None

    @property
    def ended(self) -> bool:
        """Whether the client has closed the WebSocket."""
        return self._messages is not None and self._messages.ended

    @property
    def broken(self) -> RemoteProtocolError | None:
        """The client's mistake, which comes after all the frames that were received."""
        return None if self._messages is None else self._messages.broken

    def received(self, data: bytes | bytearray | memoryview, limit: int) -> bytes:
        """Return the RLX frames that these bytes complete, perhaps none. `limit`: the longest message, in bytes.

        Raises HttpRefused. Send `to_send` in either case.
        """
        if self._messages is not None:
            return self._messages.received(data, limit)
        if self._refusal:
            raise self._refused(HTTPStatus.BAD_REQUEST, self._refusal)
        self._head += data
        head, end, rest = self._head.partition(END_OF_REQUEST)
        if len(head) + len(end) > MAX_REQUEST_BYTES:
            raise self._refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LONG)
        if not end:
            return b""
        if head + end == HTTP2_REQUEST:
            raise self._refused(HTTPStatus.BAD_REQUEST, NO_GRPC)
        self._head = bytearray()
        self._answer(head + end)
        self._messages = MessageStream(self._protocol)
        return self._messages.received(rest, limit) if rest else b""

    def _answer(self, head: bytearray) -> None:
        """Answer the request. Raises HttpRefused if the answer is no WebSocket."""
        protocol = self._protocol
        protocol.receive_data(head)
        events = protocol.events_received()
        if not events or not isinstance(events[0], Request):
            protocol.data_to_send()
            raise self._refused(HTTPStatus.BAD_REQUEST, NO_REQUEST)
        try:
            response = protocol.accept(events[0])
        except UnicodeEncodeError:  # websockets 16 stumbles over its own sentence, with bytes of the client in it
            raise self._refused(HTTPStatus.BAD_REQUEST, NO_REQUEST) from None
        status = HTTPStatus(response.status_code)
        if status is HTTPStatus.SWITCHING_PROTOCOLS:
            protocol.send_response(response)
            return
        error = protocol.handshake_exc
        sentence = f"No WebSocket: {_shown(str(error))}."
        if isinstance(error, InvalidOrigin):
            sentence = NOT_ALLOWED.format(_shown(str(error.value)))
        elif status in (HTTPStatus.UPGRADE_REQUIRED, HTTPStatus.METHOD_NOT_ALLOWED):
            sentence = NO_PAGES
        kept = {name: response.headers[name] for name in ("Upgrade", "Allow") if name in response.headers}
        raise self._refused(status, sentence, kept)

    def _refused(self, status: HTTPStatus, sentence: str, more: dict[str, str] | None = None) -> HttpRefused:
        response = self._protocol.reject(status, f"{sentence}\n")
        response.headers.update(more or {})
        self._protocol.writes.append(response.serialize())
        return HttpRefused(f"HTTP {status.value}: {sentence}")

    def sealed(self, data: bytes | memoryview) -> bytes:
        """Return the messages that carry whole RLX frames. Raises WebSocketOver."""
        if self._messages is None:
            raise WebSocketOver
        return self._messages.sealed(data)

    def to_send(self) -> bytes:
        """Return WebSocket's own bytes for the peer: the answer to a request, or to a ping or a Close frame."""
        return b"".join(self._protocol.data_to_send())

    def farewell(self) -> bytes:
        """Return a Close frame, if the WebSocket was open and is not closed yet."""
        return b"" if self._messages is None else self._messages.farewell()


def _shown(said: str) -> str:
    """Return what a client said so that it can stand in a log."""
    return "".join(character if character.isprintable() else "?" for character in said[:200])
