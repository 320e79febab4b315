"""What a worker tells its server about its client: that it was let in, welcomed, and has proved that it reads.

By ending the line before that a worker tells that its client was not let in, or has gone. A server that ends the line
of a worker whose client has proved nothing wants it to end, as does one that says REVOKED, at any time.

Two things are answered: what the client claims by its hello (see `claims`); and where a worker first had to wait for
its client, the server decides only then whether there is room, since those that wait take none.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from typing import NamedTuple

from relaax.rlx.errors import ErrorCode

ADMITTED = b"1"
GREETED = b"g"
PROVEN = b"p"
WAITS = b"w"  # for its client, which has yet to say its hello over TLS
RESUMES = b"r"
FAILED = b"x"
CLAIMS = b"c"  # and a Claim
REVOKED = b"u"
_ENDS = b"\n"


class Claim(NamedTuple):
    """What a client asks for: under which name, by the digest of which token, for how many environments."""

    client: str
    digest: str
    environments: int


class Grant(NamedTuple):
    """It may come in. Which numbers are its own, and its client's (see `meters`)."""

    row: int
    bucket: int


class ClaimRefusal(NamedTuple):
    """Why it may not."""

    code: ErrorCode
    sentence: str
    retry_after_seconds: float = 0.0


class NoAnswer(Exception):
    """The server wants its workers to end, or has died."""


def report_line() -> tuple[int, int]:
    """Descriptors of the server's end and of the worker's. Raises OSError."""
    server, worker = socket.socketpair()
    return server.detach(), worker.detach()


def answer(descriptor: int, refusal: str | None) -> None:
    """Tell the worker at the other end of the server's `descriptor`, which `resumes`, why there is no room, if so."""
    _answer(descriptor, refusal or "")


def claim_at(descriptor: int) -> Claim:
    """What the worker has said after CLAIMS."""
    return Claim(*json.loads(os.read(descriptor, 4096)))


def answer_claim(descriptor: int, decision: Grant | ClaimRefusal) -> None:
    """Tell it what was decided."""
    _answer(descriptor, json.dumps([isinstance(decision, Grant), *decision]))


def revoke(descriptor: int) -> None:
    """Tell it that its client is let in no more."""
    with contextlib.suppress(OSError):
        os.write(descriptor, REVOKED)


def _answer(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):  # it has died, which is noticed elsewhere
        os.write(descriptor, text.replace("\n", " ").encode() + _ENDS)


class WorkerReports:
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

    def waits(self) -> None:
        """The worker waits for its client, and does nothing until it `resumes`."""
        self._say(WAITS)

    def resumes(self, lifeline: int) -> str | None:
        """The client has said what was waited for. Returns why there is no room for it; None where there is.

        None as well where the descriptor `lifeline` tells that the worker must end, and the server answers no more.
        """
        try:
            return self._ask(RESUMES, lifeline).strip() or None
        except NoAnswer:
            return None

    def claims(self, claim: Claim, lifeline: int) -> Grant | ClaimRefusal:
        """What the server decides. Raises NoAnswer."""
        granted, *decision = json.loads(self._ask(CLAIMS + json.dumps(claim).encode(), lifeline))
        if granted:
            return Grant(*decision)
        code, *more = decision
        return ClaimRefusal(ErrorCode(code), *more)

    def _ask(self, word: bytes, lifeline: int) -> str:
        self._say(word)
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        poll.register(self.descriptor, select.POLLIN)
        if self.descriptor not in dict(poll.poll()):
            raise NoAnswer
        said = b""
        while not said.endswith(_ENDS):  # REVOKED may follow, which is not for here
            piece = os.read(self.descriptor, 1)
            if not piece:
                raise NoAnswer
            said += piece
        return said.decode()

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
