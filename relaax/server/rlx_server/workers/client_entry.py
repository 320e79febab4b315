"""Admission of a client: TLS, WebSocket, its hello, its token, and its claim."""

from __future__ import annotations

import contextlib
import logging
import ssl
import time

from relaax.rlx import Hello, Mode, RemoteProtocolError
from relaax.rlx.errors import ErrorCode
from relaax.server.rlx_server.clients.accounts import SPEAKS_TLS, Authentication, Identity
from relaax.server.rlx_server.connection.channel import HttpRefused, PeerGone, TlsFailed
from relaax.server.rlx_server.connection.peer import Peer, PeerSilent, ServerStopping
from relaax.server.rlx_server.worker_reports import (
    NO_ROOM_RETRY_SECONDS,
    Claim,
    ClaimRefusal,
    Grant,
    NoAnswer,
    WorkerReports,
)

_log = logging.getLogger(__name__)

ONLY_ACTS = (
    "this server is for clients that act and teach nothing: connect in exploit mode (--exploit, mode='exploit'), or to "
    "a server that trains"
)


class ClientEntrance:
    """The admission of one connection. Raises what `Peer.receive` does."""

    def __init__(
        self,
        peer: Peer,
        authentication: Authentication,
        reports: WorkerReports,
        lifeline: int,
        only_acts: bool = False,
    ) -> None:
        """`only_acts`: clients that would train are refused."""
        self._only_acts = only_acts
        self._peer, self._authentication, self._reports, self._lifeline = peer, authentication, reports, lifeline
        self._no_room: str | None = None

    def let_in(self, timeout: float) -> tuple[Hello, Identity] | None:
        """Return the client's hello, without its token, and its identity; None if there is no hello or it is refused.

        The client has `timeout` seconds.
        """
        began, tls = time.monotonic(), self._authentication.tls
        stalls = tls is not None or self._peer.begins_with_http()
        if stalls:  # it has more to send before its hello, and does not delay others
            self._reports.waits()
        if tls is not None and not self._secure(tls, timeout):
            return None
        try:
            hello = self._peer.receive(max(0.0, began + timeout - time.monotonic()))
        except HttpRefused as refused:
            self._failed(str(refused))
            return None
        if stalls:
            self._no_room = self._reports.resumes(self._lifeline)
        if not isinstance(hello, Hello):  # the state machine also allows a bye
            return None
        who = self._authentication.identified(hello.token)
        hello = self._peer.connection.forget_token()
        if isinstance(who, Identity):
            return hello, who
        self._reports.failed()
        _log.warning("refused a client at %s: %s", hello.host, who)
        self._peer.refuse(ErrorCode.UNAUTHENTICATED, who)
        return None

    def granted(self, hello: Hello, who: Identity, no_room: str | None) -> Grant | None:
        """Return what the server grants; None if it refuses, after informing the client. `no_room`: why, if known.

        Raises ServerStopping.
        """
        if self._only_acts and hello.mode != Mode.EXPLOIT:
            _log.info("refused %s of %s: it would train", hello.environment, called(hello, who))
            self._peer.refuse(ErrorCode.INVALID_VALUE, ONLY_ACTS)
            return None
        no_room = no_room or self._no_room
        if no_room is not None:
            self._peer.refuse(ErrorCode.OVERLOADED, no_room, NO_ROOM_RETRY_SECONDS)
            return None
        try:
            decision = self._reports.claims(Claim(who.name, who.digest, hello.environments), self._lifeline)
        except NoAnswer:
            raise ServerStopping from None
        if isinstance(decision, ClaimRefusal):
            self._peer.refuse(*decision)
            return None
        return decision

    def _secure(self, context: ssl.SSLContext, timeout: float) -> bool:
        """Return whether the TLS handshake succeeded."""
        try:
            if self._peer.secure(context, timeout):
                return True
        except (PeerGone, PeerSilent, TlsFailed, HttpRefused) as error:  # a request may come with the handshake's end
            self._failed(str(error) or "it disconnected or timed out during the TLS handshake")
            return False
        self._failed(SPEAKS_TLS)
        self._peer.channel.http_refusal = f"T{SPEAKS_TLS[1:]}, wss:// in a browser."
        with contextlib.suppress(RemoteProtocolError, HttpRefused):  # the message determines the codec of the answer
            self._peer.receive(timeout)
        self._peer.refuse(ErrorCode.MALFORMED, SPEAKS_TLS)
        return False

    def _failed(self, why: str) -> None:
        self._reports.failed()
        _log.warning("refused a client: %s", why)


def called(hello: Hello, who: Identity) -> str:
    """Return an admitted client's name in the log: its name, if it has one, and the host that it reports."""
    host = hello.host or "an unnamed host"
    return f"client {who.name} at {host}" if who.name else host
