"""The client's end of a WebSocket, without the socket: a request, then messages."""

from __future__ import annotations

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.protocol import CONNECTING
from websockets.uri import WebSocketURI

from relaax.client.connection.failure import ConnectionInterrupted
from relaax.rlx import HANDSHAKE_FRAME_BYTES
from relaax.websocket import QUIET, HeldFailure, MessageStream

_MAY_PASS = (429, 500, 502, 503, 504)
"""Answers of HTTP, by proxies too, after which it is worth to try again."""
_SHOWN = 300


class _ClientEnd(HeldFailure, ClientProtocol):
    """The library's end of a client."""


class ClientWebSocket(MessageStream):
    """A WebSocket that is asked for when it is made: send `to_send`, then give it what is `received` until `open`."""

    def __init__(self, host: str, port: int, path: str, secure: bool) -> None:
        """`secure`: whether TLS lies below."""
        path, _, query = path.partition("?")
        self._protocol: _ClientEnd = _ClientEnd(
            WebSocketURI(secure, host, port, path, query), max_size=HANDSHAKE_FRAME_BYTES, logger=QUIET
        )
        super().__init__(self._protocol)
        self._protocol.send_request(self._protocol.connect())
        self.open = False

    def answered(self, data: bytes | memoryview) -> bytes:
        """Take in the answer to the request; no bytes are the end of the stream. Return the RLX frames behind it.

        Raises ConnectionInterrupted if the answer is no WebSocket.
        """
        if data:
            said = self.received(data, HANDSHAKE_FRAME_BYTES)
        else:
            self._protocol.receive_eof()
            said = b""
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            response = error.response
            words = bytes(response.body or b"").decode("utf-8", "replace").strip().partition("\n")[0][:_SHOWN]
            why = words if words.isprintable() and words else response.reason_phrase
            raise ConnectionInterrupted(
                f"no WebSocket: HTTP {response.status_code}: {why}", retryable=response.status_code in _MAY_PASS
            )
        if error is not None:
            raise ConnectionInterrupted(f"no WebSocket: {error}", retryable=not data)
        self.open = self._protocol.state is not CONNECTING
        return said
