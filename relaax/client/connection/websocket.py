"""The client's side of a WebSocket, without the socket: a request, then messages."""

from __future__ import annotations

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.protocol import CONNECTING
from websockets.uri import WebSocketURI

from relaax.client.connection.failure import ConnectionInterrupted
from relaax.rlx import HANDSHAKE_FRAME_BYTES
from relaax.websocket import QUIET, HeldFailure, MessageStream

_RETRYABLE_STATUS = (429, 500, 502, 503, 504)
"""HTTP status codes, also of proxies, after which a retry may succeed."""
_MAX_REASON = 300


class _ClientEnd(HeldFailure, ClientProtocol):
    """The client side of the WebSocket library."""


class ClientWebSocket(MessageStream):
    """A WebSocket to an RLX server.

    The constructor prepares the HTTP request. Send the bytes that `to_send` returns, then call `receive_answer` until
    `open` is true.
    """

    def __init__(self, host: str, port: int, path: str, secure: bool) -> None:
        """`secure`: whether the connection uses TLS."""
        path, _, query = path.partition("?")
        self._protocol: _ClientEnd = _ClientEnd(
            WebSocketURI(secure, host, port, path, query), max_size=HANDSHAKE_FRAME_BYTES, logger=QUIET
        )
        super().__init__(self._protocol)
        self._protocol.send_request(self._protocol.connect())
        self.open = False

    def receive_answer(self, data: bytes | memoryview) -> bytes:
        """Process bytes of the answer to the request; empty at the end of the stream. Return the RLX frames after it.

        Raises ConnectionInterrupted if the server does not open a WebSocket.
        """
        if data:
            frames = self.received(data, HANDSHAKE_FRAME_BYTES)
        else:
            self._protocol.receive_eof()
            frames = b""
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            response = error.response
            words = bytes(response.body or b"").decode("utf-8", "replace").strip().partition("\n")[0][:_MAX_REASON]
            why = words if words.isprintable() and words else response.reason_phrase
            raise ConnectionInterrupted(
                f"no WebSocket: HTTP {response.status_code}: {why}", retryable=response.status_code in _RETRYABLE_STATUS
            )
        if error is not None:
            raise ConnectionInterrupted(f"no WebSocket: {error}", retryable=not data)
        self.open = self._protocol.state is not CONNECTING
        return frames
