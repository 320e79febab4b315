"""Noticing a client whose machine or network has gone without a word: no FIN, no reset, nothing."""

from __future__ import annotations

import contextlib
import socket

VANISHED_SECONDS = 30
"""So long after its last acknowledgement a client counts as gone: it answers no probe and takes nothing in."""


def notice_vanishing(sock: socket.socket) -> None:
    """Have the kernel end the connection `VANISHED_SECONDS` after its peer has vanished, busy or idle.

    Without TCP_USER_TIMEOUT (Linux has it) what was sent and not acknowledged is tried again for a quarter of an hour.
    A client that is alive and reads nothing is ended by the same time, if bytes wait for it.
    """
    with contextlib.suppress(OSError):  # such as a socket of another family, which has no such peers
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", VANISHED_SECONDS // 2),
            ("TCP_KEEPINTVL", VANISHED_SECONDS // 6),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 1000 * VANISHED_SECONDS),
        ):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
