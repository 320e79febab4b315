"""Reports of a worker to its server about its client: that it was admitted, welcomed, and has proved that it reads.

A worker that closes the line earlier reports that its client was refused or has gone. A server tells the worker of an
unproven client to end by closing the line, and any worker by sending REVOKED.

Two reports are answered: the claim of the client's hello (see `claims`); and RESUMES of a worker that had to wait for
its client: the server decides only then whether there is room, as a waiting worker takes none.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from typing import Any, NamedTuple

from relaax.rlx.errors import ErrorCode

ADMITTED = b"1"
GREETED = b"g"  # the welcome has been sent
PROVEN = b"p"  # the client has sent init, and so has read its welcome
WAITS = b"w"  # for its client's hello in a layer: the worker does nothing until it resumes
RESUMES = b"r"
FAILED = b"x"  # the client broke the protocol or failed to authenticate
CLAIMS = b"c"  # followed by a Claim
REVOKED = b"u"
_ENDS = b"\n"
NO_ROOM_RETRY_SECONDS = 5.0


class Claim(NamedTuple):
    """A client's claim: its name, the digest of its token, and its number of environments."""

    client: str
    digest: str
    environments: int


class Grant(NamedTuple):
    """Admission: the row of the connection and the bucket of the client (see `meters`)."""

    row: int
    bucket: int


class ClaimRefusal(NamedTuple):
    """Refusal, with the reason."""

    code: ErrorCode
    sentence: str
    retry_after_seconds: float = 0.0


class NoAnswer(Exception):
    """The server is stopping its workers, or has died."""


def report_line() -> tuple[int, int]:
    """Return descriptors of the server's end and of the worker's. Raises OSError."""
    server, worker = socket.socketpair()
    return server.detach(), worker.detach()


def answer(descriptor: int, value: object) -> None:
    """Answer a worker at the server's `descriptor`: one that `resumes` gets why there is no room, or None."""
    with contextlib.suppress(OSError):  # the worker has died, which is noticed elsewhere
        os.write(descriptor, json.dumps(value).encode() + _ENDS)


def claim_at(descriptor: int) -> Claim:
    """Return the claim that a worker sent after CLAIMS."""
    return Claim(*json.loads(os.read(descriptor, 4096)))


def answer_claim(descriptor: int, decision: Grant | ClaimRefusal) -> None:
    """Send a worker the decision on its claim."""
    answer(descriptor, [isinstance(decision, Grant), *decision])


def revoke(descriptor: int) -> None:
    """Tell a worker that its client's token has been revoked."""
    with contextlib.suppress(OSError):
        os.write(descriptor, REVOKED)


class WorkerReports:
    """The worker's end of the line, `descriptor`, which this object takes over."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """Readable once the server has closed the line; -1 once the worker has."""

    def admitted(self) -> None:
        """Report that the client has been admitted. Raises BrokenPipeError if the server has died."""
        os.write(self.descriptor, ADMITTED)

    def say(self, word: bytes) -> None:
        """Report GREETED, PROVEN, WAITS or FAILED, unless the server has closed the line or died."""
        if self.descriptor >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.descriptor, word)

    def resumes(self, lifeline: int) -> str | None:
        """Report that the client has sent its hello. Returns why there is no room for it; None if there is.

        Also returns None if the descriptor `lifeline` signals that the worker must end and the server does not answer.
        """
        try:
            return None if (refusal := self._ask(RESUMES, lifeline)) is None else str(refusal)
        except NoAnswer:
            return None

    def claims(self, claim: Claim, lifeline: int) -> Grant | ClaimRefusal:
        """Return the server's decision on a claim. Raises NoAnswer."""
        granted, *decision = self._ask(CLAIMS + json.dumps(claim).encode(), lifeline)
        if granted:
            return Grant(*decision)
        code, *more = decision
        return ClaimRefusal(ErrorCode(code), *more)

    def _ask(self, word: bytes, lifeline: int) -> Any:
        self.say(word)
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        poll.register(self.descriptor, select.POLLIN)
        if self.descriptor not in dict(poll.poll()):
            raise NoAnswer
        said = b""
        while not said.endswith(_ENDS):  # REVOKED may follow, which is handled elsewhere
            piece = os.read(self.descriptor, 1)
            if not piece:
                raise NoAnswer
            said += piece
        return json.loads(said)

    def close(self) -> None:
        """Close the line. May be called repeatedly."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
