"""What lies between the bytes of a socket and those of RLX: TLS, WebSocket, both, or nothing."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence

from relaax.rlx import HANDSHAKE_FRAME_BYTES, NEED_DATA, Event, ServerConnection
from relaax.server.rlx_server.connection.disconnects import PeerGone
from relaax.server.rlx_server.connection.tls_layer import RECORDS_BYTES, TlsFailed, TlsLayer
from relaax.server.rlx_server.connection.websocket_layer import WebSocketLayer, begins_with_http
from relaax.websocket import WebSocketOver


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
        said: bytes | memoryview = data if self._tls is None else self._opened(self._tls, data)
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

    def _opened(self, tls: TlsLayer, data: bytes | memoryview) -> bytes:
        try:
            return tls.received(data)
        except TlsFailed as error:
            if not tls.agreed:
                raise
            raise PeerGone from error

    def to_send(self) -> bytes:
        """Return the layers' own bytes for the client. Raises PeerGone if TLS has failed."""
        own = b"" if self._websocket is None else self._websocket.to_send()
        if self._tls is None:
            return own
        return self._sealed_by(self._tls, own) if own else self._tls.to_send()

    def sealed(self, data: bytes) -> Iterator[bytes]:
        """Return the bytes that carry whole RLX frames, in pieces to be sent one by one. Raises PeerGone."""
        try:
            if self._websocket is not None:
                data = self._websocket.sealed(data)
        except WebSocketOver as error:
            raise PeerGone from error
        if self._tls is None:
            yield data
        elif not self._tls.agreed:
            raise PeerGone  # nothing can be sent to it
        else:
            for begin in range(0, len(data), RECORDS_BYTES):
                yield self._sealed_by(self._tls, data[begin : begin + RECORDS_BYTES])

    def _sealed_by(self, tls: TlsLayer, data: bytes) -> bytes:
        try:
            return tls.sealed(data)
        except TlsFailed as error:
            raise PeerGone from error

    def farewell(self) -> bytes:
        """Return what closes the layers. Raises PeerGone if TLS has failed."""
        last = b"" if self._websocket is None else self._websocket.farewell()
        if self._tls is None:
            return last
        return (self._sealed_by(self._tls, last) if last else b"") + self._tls.farewell()
