"""What lies between the bytes of a socket and those of RLX: TLS, WebSocket, both, or nothing.

Nothing here waits or knows a socket: bytes in, bytes out. Two threads must not use OpenSSL at once, and a worker's
heartbeat sends while another thread waits to receive. So the socket stays a plain one that any thread may wait for,
and TLS is used under the lock that sending takes anyway.
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


class PeerGone(Exception):
    """The client has closed the connection, or the network has failed."""


class TlsFailed(Exception):
    """The TLS handshake has failed. The message says why."""


class Channel:
    """The layers of one connection, which its first bytes determine. Nothing here waits or knows a socket."""

    def __init__(self, connection: ServerConnection, origins: Sequence[str] = ()) -> None:
        """`origins`: of pages that may connect, beside those of this computer."""
        self._connection = connection
        self._origins = origins
        self._tls: TlsLayer | None = None
        self._websocket: WebSocketLayer | None = None
        self._begun = False
        self.direct = False
        """Whether the bytes of the socket are RLX's own, which is known from the first one on."""
        self.http_refusal = ""
        """Why a client that begins with HTTP is refused; empty if it is not for that."""

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Expect TLS from the first byte on."""
        self._tls = TlsLayer(context)

    @property
    def agreed(self) -> bool:
        """Whether the TLS handshake, if there is one, is complete."""
        return self._tls is None or self._tls.agreed

    @property
    def ended(self) -> bool:
        """Whether the client has announced the end of its data."""
        layers = (self._tls, self._websocket)
        return any(layer.ended for layer in layers if layer is not None)

    @property
    def pending(self) -> bool:
        """Whether something was received that belongs to no event yet."""
        websocket = self._websocket
        return self._connection.buffered > 0 or (
            websocket is not None and (websocket.ended or websocket.broken is not None)
        )

    def next_event(self) -> Event:
        """Return RLX's next event. Raises RemoteProtocolError, also for a mistake below RLX, once all else is read."""
        event = self._connection.next_event()
        if event is NEED_DATA and self._websocket is not None and self._websocket.broken is not None:
            raise self._websocket.broken
        return event

    def received(self, data: bytes | memoryview) -> bytes | memoryview:
        """Return the bytes of RLX in these of the client, perhaps none yet. Send `to_send` in any case.

        Raises TlsFailed during the TLS handshake, PeerGone if TLS fails later, and HttpRefused.
        """
        said: bytes | memoryview = data if self._tls is None else self._tls.received(data)
        if said and not self._begun:
            self._begun = True
            if begins_with_http(bytes(said[:1])):
                self._websocket = WebSocketLayer(self._origins, self.http_refusal)
            else:
                self.direct = self._tls is None
        if self._websocket is None or not said:
            return said
        welcome = self._connection.welcome
        limit = HANDSHAKE_FRAME_BYTES if welcome is None else welcome.limits.max_frame_bytes
        return self._websocket.received(said, limit)

    def to_send(self) -> bytes:
        """Return the layers' own bytes for the client. Raises PeerGone if TLS has failed."""
        own = b"" if self._websocket is None else self._websocket.to_send()
        if self._tls is None:
            return own
        return self._tls.sealed(own) if own else self._tls.to_send()

    def sealed(self, data: bytes) -> Iterator[bytes]:
        """Return the bytes that carry whole RLX frames, in pieces to be sent one by one. Raises PeerGone."""
        if self._websocket is not None:
            data = self._websocket.sealed(data)
        if self._tls is None:
            yield data
        else:
            for begin in range(0, len(data), RECORDS_BYTES):
                yield self._tls.sealed(data[begin : begin + RECORDS_BYTES])

    def farewell(self) -> bytes:
        """Return what closes the layers. Raises PeerGone if TLS has failed."""
        last = b"" if self._websocket is None else self._websocket.farewell()
        if self._tls is None:
            return last
        return (self._tls.sealed(last) if last else b"") + self._tls.farewell()


class TlsLayer:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.agreed = False
        """Whether the handshake is complete."""
        self.ended = False
        """Whether the peer has announced the end of its data."""

    def received(self, data: bytes | bytearray | memoryview) -> bytes:
        """Decrypt the peer's bytes, perhaps to nothing yet. Send `to_send` in any case.

        Raises TlsFailed during the handshake, and PeerGone later.
        """
        self._in.write(data)
        try:
            if not self.agreed:
                self._tls.do_handshake()
                self.agreed = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise PeerGone if self.agreed else TlsFailed(_sentence(error)) from error

    def _read(self) -> bytes:
        said = bytearray()
        try:
            while piece := self._tls.read(RECORDS_BYTES):
                said += piece
            self.ended = True
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        return bytes(said)

    def sealed(self, data: bytes | memoryview) -> bytes:
        """Return the records that carry `data`. Raises PeerGone if there is no connection, or no longer one."""
        if not self.agreed:
            raise PeerGone
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise PeerGone from error
        return self._out.read()

    def to_send(self) -> bytes:
        """Return TLS's own bytes for the peer: handshake messages or an alert."""
        return self._out.read()

    def farewell(self) -> bytes:
        """Return the closing alert."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's closing alert is not awaited
            self._tls.unwrap()
        return self._out.read()


def _sentence(error: ssl.SSLError) -> str:
    """Return a sentence for the server's log."""
    reason = error.reason or ""
    if "ALERT" in reason and "CERT" in reason.replace("CA", "CERT"):
        return f"the client does not accept this server's certificate ({reason.lower().replace('_', ' ')})"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW"):
        return f"the client offers no version or cipher that this server supports ({reason.lower().replace('_', ' ')})"
    return f"the client's TLS cannot be understood ({(reason_of(error) or reason.lower().replace('_', ' ')) or error})"


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
        """Return the messages that carry whole RLX frames. Raises PeerGone if the WebSocket is not open."""
        if self._messages is None:
            raise PeerGone
        try:
            return self._messages.sealed(data)
        except WebSocketOver as error:
            raise PeerGone from error

    def to_send(self) -> bytes:
        """Return WebSocket's own bytes for the peer: the answer to a request, or to a ping or a Close frame."""
        return b"".join(self._protocol.data_to_send())

    def farewell(self) -> bytes:
        """Return a Close frame, if the WebSocket was open and is not closed yet."""
        return b"" if self._messages is None else self._messages.farewell()


def _shown(said: str) -> str:
    """Return what a client said so that it can stand in a log."""
    return "".join(character if character.isprintable() else "?" for character in said[:200])
