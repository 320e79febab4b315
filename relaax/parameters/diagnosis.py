"""Find out why a server cannot be connected to. gRPC often knows only that the socket was closed."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from typing import TYPE_CHECKING

from relaax.tls import client_context, reason_of

if TYPE_CHECKING:
    from relaax.parameters.channel import Target

SECONDS = 3.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def connection_trouble(target: Target) -> str | None:
    """Connect once and return why no gRPC can be had, as half a sentence about "it"; None if no trouble was found.

    It takes `SECONDS` at most for each of three steps.
    """
    host, _, port = target.address.rpartition(":")
    place = (host.strip("[]"), int(port))
    if target.ca is None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said over this connection
        trouble = _dialled(place, context)
        speaks_tls = trouble is None or "certificate" in trouble
        if not speaks_tls:
            return _NO_GRPC.format(target.keys) if _answers_as_http1(place) else None
        return f"it speaks TLS, and no authority is known to check its certificate by: set {target.keys}_ca"
    context = client_context(target.ca.decode("ascii", "replace"))
    if target.certificate and target.key:
        _show(context, target.certificate, target.key)
    trouble = _dialled(place, context)
    if trouble == _SILENT:  # what a server that ends just now does, too, but not twice
        trouble = _dialled(place, context)
    if trouble is None or trouble == _AWAY:
        return None
    key = f"{target.keys}_certificate and {target.keys}_key" if "shown" in trouble else f"{target.keys}_ca"
    return f"{trouble} (see {key})"


_NO_GRPC = "it speaks no gRPC: {} names the port of another server, perhaps that of an RLX server"
_AWAY = "it is away"
_SILENT = "it closes the connection when it was shown no certificate, or one that it does not accept"


def _dialled(place: tuple[str, int], context: ssl.SSLContext) -> str | None:
    """Return what was wrong; None if nothing was."""
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(place, SECONDS) as plain:
            plain.settimeout(SECONDS)
            with context.wrap_socket(plain, server_hostname=place[0]) as secure:
                # Of TLS 1.3 a client hears only now whether its certificate was taken. A server of gRPC speaks first.
                return None if _first_word(secure) else _SILENT
    except OSError as error:
        return reason_of(error) or _AWAY


def _answers_as_http1(place: tuple[str, int]) -> bool:
    """Return whether a client of gRPC is answered in HTTP/1, as RLX servers and web servers do."""
    try:
        with socket.create_connection(place, SECONDS) as plain:
            plain.settimeout(SECONDS)
            plain.sendall(_PREFACE)
            return plain.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except OSError:
        return False


def _first_word(secure: ssl.SSLSocket) -> bytes:
    """Read the server's first bytes over TLS. Raises OSError."""
    try:
        return secure.recv(1)
    except (ConnectionError, ssl.SSLEOFError):
        return b""


def _show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate and its key. Python reads them from a file only: here from one that nobody else can read."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)
