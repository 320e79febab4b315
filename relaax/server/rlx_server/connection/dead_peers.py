"""Detection of a client whose machine or network vanishes without a FIN or reset."""

from __future__ import annotations

import contextlib
import socket

VANISHED_SECONDS = 30
"""Time after its last acknowledgement until a client counts as gone: no probe answered, no data taken."""


def notice_vanishing(sock: socket.socket) -> None:
    """Make the kernel end the connection `VANISHED_SECONDS` after its peer has vanished, busy or idle.

    Without TCP_USER_TIMEOUT (available on Linux) unacknowledged data is retransmitted for a quarter of an hour. A live
    client that does not read is disconnected after the same time if data waits for it.
    """
    with contextlib.suppress(OSError):  # such as a socket of another family, which needs no detection
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", VANISHED_SECONDS // 2),
            ("TCP_KEEPINTVL", VANISHED_SECONDS // 6),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 1000 * VANISHED_SECONDS),
        ):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
