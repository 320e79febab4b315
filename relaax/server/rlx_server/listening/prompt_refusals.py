"""Refusals that cost no process: the server's own process says them, and never waits.

They need no more of the client than the first bytes of its hello, so a full server that many clients try again and
again keeps its processors for those it serves. Over TLS a refusal would need a handshake first, and over WebSocket an
answer to the request that it begins with: there a worker does it.
"""

from __future__ import annotations

import contextlib
import socket

from relaax.rlx import HANDSHAKE_FRAME_BYTES, Error, ErrorCode, ProtocolError, ServerConnection
from relaax.rlx.framing import HEADER_BYTES
from relaax.server.strikes import SECONDS

NO_ROOM_RETRY_SECONDS = 5.0
TURNED_AWAY = ServerConnection().send(
    Error(ErrorCode.OVERLOADED, "too many handshakes from this address have failed: wait a minute", True, SECONDS)
)


def turn_away(sock: socket.socket, tls: bool) -> None:
    """Refuse a connection that may have sent nothing yet, and close it. With `tls`, without a word."""
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        if not tls:
            sock.send(TURNED_AWAY)
        sock.shutdown(socket.SHUT_WR)


def say_no_room(sock: socket.socket, why: str) -> None:
    """Refuse a connection whose whole hello has arrived, in the client's codec, and close it.

    The hello is not decoded, and its token not looked at: there is room for nobody.
    """
    with sock, contextlib.suppress(OSError, ProtocolError):
        sock.setblocking(False)
        hello = sock.recv(HEADER_BYTES + HANDSHAKE_FRAME_BYTES)  # a socket closed with unread bytes loses what it sent
        connection = ServerConnection()
        connection.receive_data(hello[: HEADER_BYTES + 1])  # enough to learn the codec
        connection.next_event()
        sock.send(connection.send(Error(ErrorCode.OVERLOADED, why, True, NO_ROOM_RETRY_SECONDS)))
        sock.shutdown(socket.SHUT_WR)
