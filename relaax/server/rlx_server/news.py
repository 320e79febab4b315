"""What a worker tells its server about its client: that it was let in, welcomed, and has proved that it reads.

By ending the line before that a worker tells that its client was not let in, or has gone. A server that ends the line
of a worker whose client has proved nothing wants it to end.

One thing is answered: where a worker first had to wait for its client, the server decides only then whether there is
room, since those that wait take none.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket

ADMITTED = b"1"
GREETED = b"g"
PROVEN = b"p"
WAITS = b"w"  # for its client, which has yet to say its hello over TLS
RESUMES = b"r"
FAILED = b"x"
_ENDS = b"\n"


def news_line() -> tuple[int, int]:
    """Descriptors of the server's end and of the worker's. Raises OSError."""
    server, worker = socket.socketpair()
    return server.detach(), worker.detach()


def answer(descriptor: int, refusal: str | None) -> None:
    """Tell the worker at the other end of the server's `descriptor`, which `resumes`, why there is no room, if so."""
    with contextlib.suppress(OSError):  # it has died, which is noticed elsewhere
        os.write(descriptor, (refusal or "").replace("\n", " ").encode() + _ENDS)


class News:
    """The worker's end of the line, `descriptor`, which is this object's from here on."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """Readable once the server has ended the line; -1 once the worker has."""

    def admitted(self) -> None:
        """The client has been let in. Raises BrokenPipeError where the server has died."""
        os.write(self.descriptor, ADMITTED)

    def greeted(self) -> None:
        """The client has its welcome, read or unread."""
        self._say(GREETED)

    def proven(self) -> None:
        """The client has read its welcome: it has said init."""
        self._say(PROVEN)
        self.close()

    def waits(self) -> None:
        """The worker waits for its client, and does nothing until it `resumes`."""
        self._say(WAITS)

    def resumes(self, lifeline: int) -> str | None:
        """The client has said what was waited for. Returns why there is no room for it; None where there is.

        None as well where the descriptor `lifeline` tells that the worker must end, and the server answers no more.
        """
        self._say(RESUMES)
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        poll.register(self.descriptor, select.POLLIN)
        said = b""
        while not said.endswith(_ENDS):
            if self.descriptor not in dict(poll.poll()):
                return None
            piece = os.read(self.descriptor, 4096)
            if not piece:
                return None
            said += piece
        return said.decode().strip() or None

    def failed(self) -> None:
        """The client broke the protocol, or did not prove that it may come in."""
        self._say(FAILED)

    def _say(self, word: bytes) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(BrokenPipeError):  # the server has ended the line, or has died
                os.write(self.descriptor, word)

    def close(self) -> None:
        """There will be no more. It may be called again."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
