"""The layers between the bytes of a socket and the frames of RLX: TLS, WebSocket, both, or neither.

This module converts bytes and uses no socket. Two threads must not use one OpenSSL connection at the same time, and a
worker's heartbeat sends while another thread waits to receive. So the socket is a plain one, on which any thread may
wait, and TLS runs under the lock that sending needs in any case.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus

from websockets.exceptions import InvalidOrigin
from websockets.http11 import Request
from websockets.server import ServerProtocol

from relaax.rlx import HANDSHAKE_FRAME_BYTES, NEED_DATA, Event, RemoteProtocolError, ServerConnection
from relaax.tls import reason_of
from relaax.websocket import QUIET, HeldFailure, MessageStream, WebSocketOver

RECORDS_BYTES = 2**18
MAX_REQUEST_BYTES = 2**14
"""Maximum length of an HTTP request with its header."""
END_OF_REQUEST = b"\r\n\r\n"
HTTP2_REQUEST = b"PRI * HTTP/2.0" + END_OF_REQUEST
"""First bytes of an HTTP/2 client, such as a gRPC client."""
LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?")
"""Origins of pages that this machine serves to itself."""

NO_PAGES = (
    "This port serves RLX, the protocol between environments and the agents of RELAAX, over TCP or over WebSocket "
    "(binary messages). It has no pages."
)
NO_GRPC = (
    "This port serves RLX, not gRPC: relaax-rlx-server.parameter_server and replay_server name the gRPC ports, 7000 "
    "and 7002 by default."
)
NOT_ALLOWED = (
    "Pages of the origin {} may not connect to this server: add the origin to relaax-rlx-server.origins (pages of "
    "localhost may always connect)."
)
TOO_LONG = f"The HTTP request is longer than {MAX_REQUEST_BYTES} bytes."
NO_REQUEST = f"The HTTP request is malformed. {NO_PAGES}"


class PeerDisconnected(Exception):
    """The client has closed the connection, or the network has failed."""


class TlsFailed(Exception):
    """The TLS handshake has failed. The message says why."""


class Channel:
    """The layers of one connection, which its first bytes determine."""

    def __init__(self, connection: ServerConnection, origins: Sequence[str] = ()) -> None:
        """`origins`: see `Authentication`."""
        self._connection = connection
        self._origins = origins
        self._tls: TlsLayer | None = None
        self._websocket: WebSocketLayer | None = None
        self._has_begun = False
        self.direct = False
        """Whether the socket carries RLX frames without layers. The first byte determines this."""
        self.http_refusal = ""
        """Why an HTTP request is refused; empty if requests are accepted."""

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Expect TLS from the first byte."""
        self._tls = TlsLayer(context)

    @property
    def is_agreed(self) -> bool:
        """Whether the TLS handshake is complete, or there is no TLS."""
        return self._tls is None or self._tls.is_agreed

    @property
    def ended(self) -> bool:
        """Whether the client has announced the end of its data."""
        layers = (self._tls, self._websocket)
        return any(layer.ended for layer in layers if layer is not None)

    @property
    def pending(self) -> bool:
        """Whether some received data has not been returned as an event yet."""
        websocket = self._websocket
        return self._connection.buffered > 0 or (
            websocket is not None and (websocket.ended or websocket.broken is not None)
        )

    def next_event(self) -> Event:
        """Return RLX's next event. Raises RemoteProtocolError.

        An error of the WebSocket layer is raised after all events that were received before it.
        """
        event = self._connection.next_event()
        if event is NEED_DATA and self._websocket is not None and self._websocket.broken is not None:
            raise self._websocket.broken
        return event

    def decode(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the RLX bytes that the client's `data` completes, perhaps none.

        Send `to_send` afterwards, even if this raises an error.

        Raises TlsFailed during the TLS handshake, PeerDisconnected if TLS fails later, and HttpRefused.
        """
        plain: bytes | memoryview = data if self._tls is None else self._tls.decode(data)
        if plain and not self._has_begun:
            self._has_begun = True
            if begins_with_http(bytes(plain[:1])):
                self._websocket = WebSocketLayer(self._origins, self.http_refusal)
            else:
                self.direct = self._tls is None
        if self._websocket is None or not plain:
            return plain
        welcome = self._connection.welcome
        limit = HANDSHAKE_FRAME_BYTES if welcome is None else welcome.limits.max_frame_bytes
        return self._websocket.decode(plain, limit)

    def to_send(self) -> bytes:
        """Return the pending bytes of TLS and WebSocket themselves. Raises PeerDisconnected if TLS has failed."""
        own = b"" if self._websocket is None else self._websocket.to_send()
        if self._tls is None:
            return own
        return self._tls.encode(own) if own else self._tls.to_send()

    def encode(self, data: bytes) -> Iterator[bytes]:
        """Yield the bytes that carry whole RLX frames, in parts to send one by one. Raises PeerDisconnected."""
        if self._websocket is not None:
            data = self._websocket.encode(data)
        if self._tls is None:
            yield data
        else:
            for begin in range(0, len(data), RECORDS_BYTES):
                yield self._tls.encode(data[begin : begin + RECORDS_BYTES])

    def closing_bytes(self) -> bytes:
        """Return the bytes that close the layers. Raises PeerDisconnected if TLS has failed."""
        last = b"" if self._websocket is None else self._websocket.closing_bytes()
        if self._tls is None:
            return last
        return (self._tls.encode(last) if last else b"") + self._tls.closing_bytes()


class TlsLayer:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.is_agreed = False
        """Whether the handshake is complete."""
        self.ended = False
        """Whether the peer has announced the end of its data."""

    def decode(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the decrypted bytes of `data`, perhaps none. Send `to_send` afterwards, even if this raises an error.

        Raises TlsFailed during the handshake, and PeerDisconnected after it.
        """
        self._in.write(data)
        try:
            if not self.is_agreed:
                self._tls.do_handshake()
                self.is_agreed = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise PeerDisconnected if self.is_agreed else TlsFailed(_tls_failure(error)) from error

    def _read(self) -> bytes:
        data = bytearray()
        try:
            while piece := self._tls.read(RECORDS_BYTES):
                data += piece
            self.ended = True
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        return bytes(data)

    def encode(self, data: bytes | memoryview) -> bytes:
        """Return the records that carry `data`. Raises PeerDisconnected before the handshake and after a failure."""
        if not self.is_agreed:
            raise PeerDisconnected
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise PeerDisconnected from error
        return self._out.read()

    def to_send(self) -> bytes:
        """Return pending bytes of TLS itself for the peer: handshake messages or an alert."""
        return self._out.read()

    def closing_bytes(self) -> bytes:
        """Return the closing alert."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's closing alert is not awaited
            self._tls.unwrap()
        return self._out.read()


def _tls_failure(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if "ALERT" in reason and "CERT" in reason.replace("CA", "CERT"):
        return f"the client does not accept this server's certificate ({reason.lower().replace('_', ' ')})"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW"):
        return f"the client offers no version or cipher that this server supports ({reason.lower().replace('_', ' ')})"
    return f"the client's TLS handshake is invalid ({(reason_of(error) or reason.lower().replace('_', ' ')) or error})"


class HttpRefused(Exception):
    """An HTTP request was refused. The message says why."""


def begins_with_http(first: bytes) -> bool:
    """Return whether a connection with these first bytes uses HTTP, whose methods are in capital letters.

    RLX never begins with a capital letter: that would be a first frame of more than a gigabyte.
    """
    return first[:1].isalpha() and first[:1].isupper()


class _ServerEnd(HeldFailure, ServerProtocol):
    """The server side of the WebSocket library, which lets RLX send its error before a failed connection closes."""


class WebSocketLayer:
    """The server's end of a connection that began with an HTTP request. `origins`: see `Authentication`."""

    def __init__(self, origins: Sequence[str], refusal: str = "") -> None:
        """`refusal`: why every request is refused; empty if requests are accepted."""
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
        """The client's error, to be raised after all frames received before it."""
        return None if self._messages is None else self._messages.broken

    def decode(self, data: bytes | bytearray | memoryview, limit: int) -> bytes:
        """Return the RLX frames that `data` completes, perhaps none. `limit`: maximum length of a message, in bytes.

        Raises HttpRefused. Send `to_send` afterwards, even if this raises an error.
        """
        if self._messages is not None:
            return self._messages.received(data, limit)
        if self._refusal:
            raise self._http_refusal(HTTPStatus.BAD_REQUEST, self._refusal)
        self._head += data
        head, end, rest = self._head.partition(END_OF_REQUEST)
        if len(head) + len(end) > MAX_REQUEST_BYTES:
            raise self._http_refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, TOO_LONG)
        if not end:
            return b""
        if head + end == HTTP2_REQUEST:
            raise self._http_refusal(HTTPStatus.BAD_REQUEST, NO_GRPC)
        self._head = bytearray()
        self._answer_request(head + end)
        self._messages = MessageStream(self._protocol)
        return self._messages.received(rest, limit) if rest else b""

    def _answer_request(self, head: bytearray) -> None:
        """Answer the request. Raises HttpRefused if it does not become a WebSocket."""
        protocol = self._protocol
        protocol.receive_data(head)
        events = protocol.events_received()
        if not events or not isinstance(events[0], Request):
            protocol.data_to_send()
            raise self._http_refusal(HTTPStatus.BAD_REQUEST, NO_REQUEST)
        try:
            response = protocol.accept(events[0])
        except UnicodeEncodeError:  # websockets 16 cannot encode its own error text, which quotes bytes of the client
            raise self._http_refusal(HTTPStatus.BAD_REQUEST, NO_REQUEST) from None
        status = HTTPStatus(response.status_code)
        if status is HTTPStatus.SWITCHING_PROTOCOLS:
            protocol.send_response(response)
            return
        error = protocol.handshake_exc
        sentence = f"The WebSocket handshake failed: {_printable(str(error))}."
        if isinstance(error, InvalidOrigin):
            sentence = NOT_ALLOWED.format(_printable(str(error.value)))
        elif status in (HTTPStatus.UPGRADE_REQUIRED, HTTPStatus.METHOD_NOT_ALLOWED):
            sentence = NO_PAGES
        kept = {name: response.headers[name] for name in ("Upgrade", "Allow") if name in response.headers}
        raise self._http_refusal(status, sentence, kept)

    def _http_refusal(self, status: HTTPStatus, sentence: str, more: dict[str, str] | None = None) -> HttpRefused:
        response = self._protocol.reject(status, f"{sentence}\n")
        response.headers.update(more or {})
        self._protocol.writes.append(response.serialize())
        return HttpRefused(f"HTTP {status.value}: {sentence}")

    def encode(self, data: bytes | memoryview) -> bytes:
        """Return the messages that carry whole RLX frames. Raises PeerDisconnected if the WebSocket is not open."""
        if self._messages is None:
            raise PeerDisconnected
        try:
            return self._messages.to_messages(data)
        except WebSocketOver as error:
            raise PeerDisconnected from error

    def to_send(self) -> bytes:
        """Return pending bytes of WebSocket itself for the peer: an answer to a request, a ping or a Close frame."""
        return b"".join(self._protocol.data_to_send())

    def closing_bytes(self) -> bytes:
        """Return a Close frame; empty if the WebSocket is not open."""
        return b"" if self._messages is None else self._messages.close_frame()


def _printable(text: str) -> str:
    """Return at most 200 characters of a client's text, safe for a log."""
    return "".join(character if character.isprintable() else "?" for character in text[:200])
