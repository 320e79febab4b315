"""Admission of a client: TLS, WebSocket, its hello, its token, and its claim."""

from __future__ import annotations

import contextlib
import logging
import ssl
import time

from relaax.rlx import Hello, Mode, RemoteProtocolError
from relaax.rlx.errors import ErrorCode
from relaax.server.rlx_server.clients.accounts import SPEAKS_TLS, Authentication, Identity
from relaax.server.rlx_server.connection.channel import HttpRefused, PeerDisconnected, TlsFailed
from relaax.server.rlx_server.connection.peer import Peer, PeerTimeout, ServerStopping
from relaax.server.rlx_server.worker_reports import (
    FAILED,
    NO_ROOM_RETRY_SECONDS,
    STALLED,
    Claim,
    ClaimRefusal,
    Grant,
    NoAnswer,
    WorkerReports,
)

_log = logging.getLogger(__name__)

_UNNAMED_HOST = "an unnamed host"
ONLY_ACTS = (
    "this server only accepts clients that do not train: connect in exploit mode (--exploit, mode='exploit'), or to a "
    "server that trains"
)


class ClientAdmission:
    """The admission of one connection. Its methods raise the errors of `Peer.receive`."""

    def __init__(self, peer: Peer, authentication: Authentication, reports: WorkerReports, lifeline: int) -> None:
        self._peer, self._authentication, self._reports, self._lifeline = peer, authentication, reports, lifeline
        self._no_room: str | None = None

    def authenticate(self, timeout: float) -> tuple[Hello, Identity] | None:
        """Return the hello, without its token, and the client's identity; None if the client was refused."""
        began, tls = time.monotonic(), self._authentication.tls
        stalls = tls is not None or self._peer.begins_with_http()
        if stalls:  # the hello follows TLS or WebSocket: meanwhile this worker takes no place
            self._reports.send(STALLED)
        if tls is not None and not self._secure(tls, timeout):
            return None
        try:
            hello = self._peer.receive(max(0.0, began + timeout - time.monotonic()))
        except HttpRefused as refused:
            self._failed(str(refused))
            return None
        if stalls:
            self._no_room = self._reports.resume(self._lifeline)
        if not isinstance(hello, Hello):  # the state machine also allows a bye
            return None
        who = self._authentication.identify(hello.token)
        hello = self._peer.connection.remove_token()
        if isinstance(who, Identity):
            return hello, who
        self._reports.send(FAILED)
        _log.warning("refused a client at %s: %s", hello.host or _UNNAMED_HOST, who)
        self._peer.refuse(ErrorCode.UNAUTHENTICATED, who)
        return None

    def request_grant(self, hello: Hello, who: Identity, no_room: str | None, only_acts: bool) -> Grant | None:
        """Return the server's grant; None if the client was refused, with an error. Raises ServerStopping.

        `no_room`: why there is no room, if the server has decided that. `only_acts`: whether to refuse clients that
        train.
        """
        if only_acts and hello.mode != Mode.EXPLOIT:
            _log.info("refused %s of %s: this server does not train", hello.environment, client_label(hello, who))
            self._peer.refuse(ErrorCode.INVALID_VALUE, ONLY_ACTS)
            return None
        no_room = no_room or self._no_room
        if no_room is not None:
            self._peer.refuse(ErrorCode.OVERLOADED, no_room, NO_ROOM_RETRY_SECONDS)
            return None
        try:
            decision = self._reports.request_grant(Claim(who.name, who.digest, hello.environments), self._lifeline)
        except NoAnswer:
            raise ServerStopping from None
        if isinstance(decision, ClaimRefusal):
            self._peer.refuse(*decision)
            return None
        return decision

    def _secure(self, context: ssl.SSLContext, timeout: float) -> bool:
        try:
            if self._peer.secure(context, timeout):
                return True
        except (PeerDisconnected, PeerTimeout, TlsFailed, HttpRefused) as error:
            # HttpRefused: a request may arrive with the last message of the handshake.
            self._failed(str(error) or "it disconnected or timed out during the TLS handshake")
            return False
        self._failed(SPEAKS_TLS)
        self._peer.channel.http_refusal = f"T{SPEAKS_TLS[1:]}, or use wss:// in a browser."
        with contextlib.suppress(RemoteProtocolError, HttpRefused):  # the message determines the codec of the error
            self._peer.receive(timeout)
        self._peer.refuse(ErrorCode.MALFORMED, SPEAKS_TLS)
        return False

    def _failed(self, why: str) -> None:
        self._reports.send(FAILED)
        _log.warning("refused a client before its hello: %s", why)


def client_label(hello: Hello, who: Identity) -> str:
    """Return the label of an admitted client for logs: its name, if it has one, and the host that it reports."""
    host = hello.host or _UNNAMED_HOST
    return f"client {who.name} at {host}" if who.name else host
