"""Reports of a worker to its server about its client: admitted, welcomed, proved that it reads.

Reports use a pair of sockets. If the worker closes its end before it has sent PROVEN, its client was refused or has
disconnected. The server tells the worker of an unproven client to end by closing its own end, and any worker by sending
REVOKED.

The server answers two reports: CLAIMS, the claim of a client's hello (see `clients.claims`), and RESUMED, sent by a
worker that had to wait for its client. A waiting worker takes no room, so the server decides after RESUMED whether
there is room.
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
WELCOMED = b"g"  # the welcome has been sent
PROVEN = b"p"  # the client has sent init, so it has read its welcome
STALLED = b"w"  # the worker waits for the client's hello over TLS or WebSocket, until RESUMED
RESUMED = b"r"  # the client has sent its hello
FAILED = b"x"  # the client broke the protocol or failed to authenticate
CLAIMS = b"c"  # followed by a Claim
REVOKED = b"u"
_END = b"\n"
NO_ROOM_RETRY_SECONDS = 5.0


class Claim(NamedTuple):
    """A client's claim: its name, the digest of its token, and its number of environments."""

    client: str
    digest: str
    environments: int


class Grant(NamedTuple):
    """A granted claim: the row of the connection and the bucket of the client (see `clients.meters`)."""

    row: int
    bucket: int


class ClaimRefusal(NamedTuple):
    """A refusal of a claim, with the reason."""

    code: ErrorCode
    sentence: str
    retry_after_seconds: float = 0.0


class NoAnswer(Exception):
    """The server is stopping its workers, or has died."""


def report_sockets() -> tuple[int, int]:
    """Return two connected descriptors: the server's end and the worker's end. Raises OSError."""
    server, worker = socket.socketpair()
    return server.detach(), worker.detach()


def answer(descriptor: int, value: object) -> None:
    """Answer a report at the server's `descriptor`. After RESUMED, `value` is why there is no room, or None."""
    with contextlib.suppress(OSError):  # the worker has died, which `Children.reap` detects
        os.write(descriptor, json.dumps(value).encode() + _END)


def claim_at(descriptor: int) -> Claim:
    """Read the claim that a worker sends after CLAIMS."""
    return Claim(*json.loads(os.read(descriptor, 4096)))


def answer_claim(descriptor: int, decision: Grant | ClaimRefusal) -> None:
    """Send a worker the decision on its claim."""
    answer(descriptor, [isinstance(decision, Grant), *decision])


def revoke(descriptor: int) -> None:
    """Tell a worker that its client's token has been revoked."""
    with contextlib.suppress(OSError):
        os.write(descriptor, REVOKED)


class WorkerReports:
    """The worker's end of the report sockets. This object owns `descriptor`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """Readable once the server has closed its end; -1 once the worker has closed this end."""

    def admitted(self) -> None:
        """Report that the client has been admitted. Raises BrokenPipeError if the server has died."""
        os.write(self.descriptor, ADMITTED)

    def send(self, report: bytes) -> None:
        """Report WELCOMED, PROVEN, STALLED or FAILED. Does nothing if either end is closed."""
        if self.descriptor >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.descriptor, report)

    def resume(self, lifeline: int) -> str | None:
        """Report that the client has sent its hello. Return why there is no room for it; None if there is room.

        Returns None as well if the server does not answer and `lifeline` (a descriptor) tells the worker to end.
        """
        try:
            return None if (refusal := self._ask(RESUMED, lifeline)) is None else str(refusal)
        except NoAnswer:
            return None

    def request_grant(self, claim: Claim, lifeline: int) -> Grant | ClaimRefusal:
        """Send a claim and return the server's decision. Raises NoAnswer."""
        granted, *decision = self._ask(CLAIMS + json.dumps(claim).encode(), lifeline)
        if granted:
            return Grant(*decision)
        code, *more = decision
        return ClaimRefusal(ErrorCode(code), *more)

    def _ask(self, report: bytes, lifeline: int) -> Any:
        self.send(report)
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        poll.register(self.descriptor, select.POLLIN)
        if self.descriptor not in dict(poll.poll()):
            raise NoAnswer
        data = b""
        while not data.endswith(_END):  # REVOKED may follow; Peer reads it
            piece = os.read(self.descriptor, 1)
            if not piece:
                raise NoAnswer
            data += piece
        return json.loads(data)

    def close(self) -> None:
        """Close the worker's end. May be called repeatedly."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
