"""gRPC channels to servers, with TLS and a token if configured, and the reasons for failed connections."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from relaax.files import read_bounded_text
from relaax.tls import client_context, reason_of
from relaax.transport.grpc_options import MESSAGE_OVERHEAD, client_options

FILE = "@"
"""Prefix of a file name that replaces an address. The file lists the shards' addresses in order, one a line."""
AUTHORIZATION = "authorization"
"""The metadata key of the token, whose value is `Bearer TOKEN`."""

_CONNECT_FAILED = "failed to connect"  # gRPC's text if there was no connection; other texts mean that it broke
_UNAVAILABLE_CODES = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


def read_addresses(text: str) -> list[str]:
    """Return the addresses, HOST:PORT, in the file of `@FILE`. Raises ValueError with a sentence."""
    file = Path(text.removeprefix(FILE))
    try:
        lines = read_bounded_text(file).split()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for line in lines:
        host, _, port = line.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"{file}: {line!r} is not an address; each line is HOST:PORT")
    if not lines:
        raise ValueError(f"{file} contains no address")
    return lines


class MovingAddress:
    """The address of one server, read from line `index` of a file. If that fails, the last known address is used.

    The file must be replaced atomically (see `relaax.files`), so that it is never read in part.
    """

    def __init__(self, text: str, index: int) -> None:
        self._text = text
        self._index = index
        self._seen: tuple[int, int] | None = None
        self._address = read_addresses(text)[index]

    def current(self) -> str:
        """Return the present address, HOST:PORT."""
        try:
            found = os.stat(self._text.removeprefix(FILE))
            seen = found.st_ino, found.st_mtime_ns
            if seen != self._seen:
                self._address = read_addresses(self._text)[self._index]
                self._seen = seen
        except (OSError, ValueError, IndexError):
            pass
        return self._address


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server, and the credentials to connect to it, which `repr` does not show.

    `ca`: the authority (PEM) that signs the server's certificate; if given, TLS is used. `certificate` and `key` (PEM):
    this side's certificate, for a server that requests one. `service`: the kind of server, for messages. `keys`: the
    prefix of this side's configuration keys for it. `moving`: the present address, if the server may move.
    """

    address: str
    token: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    service: str = field(default="parameter server", repr=False)
    keys: str = field(default="relaax-rlx-server.parameter_server", repr=False)
    moving: MovingAddress | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.service} {self.address}"

    def at(self, address: str) -> Target:
        """Return a copy for another address."""
        return replace(self, address=address)

    def following(self, moving: MovingAddress) -> Target:
        """Return a copy whose address follows `moving`."""
        return replace(self, address=moving.current(), moving=moving)


def open_channel(target: Target, longest: int = MESSAGE_OVERHEAD) -> grpc.Channel:
    """Return a channel for messages of up to `longest` bytes. Every call sends the target's token.

    Create it in the process that uses it, because a channel does not survive a fork. Its first call connects.
    """
    if target.moving is None and not target.token:
        return _open(target, longest)
    return TargetChannel(target, longest)


def _open(target: Target, longest: int) -> grpc.Channel:
    options = client_options(longest)
    if target.ca is None:
        return grpc.insecure_channel(target.address, options)
    credentials = grpc.ssl_channel_credentials(target.ca, target.key, target.certificate)
    return grpc.secure_channel(target.address, credentials, options)


class TargetChannel(grpc.Channel):
    """A channel that adds the target's token to every call, and is replaced when the target has moved.

    If a failed call is repeated, it goes to the new address. Calls in flight during the replacement are cancelled.
    """

    def __init__(self, target: Target, longest: int) -> None:
        self._target, self._longest = target, longest
        self._place = target.moving.current() if target.moving else target.address
        self._channel = _open(target.at(self._place), longest)
        self._lock = threading.Lock()
        self.metadata = [(AUTHORIZATION, f"Bearer {target.token}")] if target.token else []

    def current(self) -> grpc.Channel:
        """Return the channel to the server's present address."""
        if self._target.moving is None:
            return self._channel
        with self._lock:
            place = self._target.moving.current()
            if place != self._place:
                before, self._channel, self._place = (
                    self._channel,
                    _open(self._target.at(place), self._longest),
                    place,
                )
                before.close()
            return self._channel

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        self._channel.subscribe(callback, bool(try_to_connect))

    def unsubscribe(self, callback: Any) -> None:
        self._channel.unsubscribe(callback)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", arguments, options)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> TargetChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method of the service, called over the present channel."""

    def __init__(self, owner: TargetChannel, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._owner = owner
        self._kind, self._arguments, self._options = kind, arguments, options
        self._channel: grpc.Channel | None = None
        self._method: Any = None

    def _current(self) -> Any:
        channel = self._owner.current()
        if channel is not self._channel:
            self._method = getattr(channel, self._kind)(*self._arguments, **self._options)
            self._channel = channel
        return self._method

    def __call__(self, request: Any, timeout: float | None = None, metadata: Any = (), **options: Any) -> Any:
        return self._current()(request, timeout, metadata=[*(metadata or ()), *self._owner.metadata], **options)

    def future(self, request: Any, timeout: float | None = None, metadata: Any = (), **options: Any) -> Any:
        """Return the call as a future."""
        return self._current().future(request, timeout, metadata=[*(metadata or ()), *self._owner.metadata], **options)


def is_unavailable(error: BaseException) -> bool:
    """Return whether a retry may succeed: the server is unreachable, slow or stopping, or the connection broke."""
    if not isinstance(error, grpc.RpcError):
        return False
    code: grpc.StatusCode = error.code()
    return code in _UNAVAILABLE_CODES or (code is grpc.StatusCode.INTERNAL and "RST_STREAM" in (error.details() or ""))


def was_never_sent(error: grpc.RpcError) -> bool:
    """Return whether a call failed because there was no connection to send it on."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and _CONNECT_FAILED in (error.details() or "")


def authentication_trouble(error: BaseException, target: Target) -> str | None:
    """Return a sentence if a call failed because one side could not prove its identity or does not support gRPC.

    In these cases a retry does not help. Return None for other failures. If the call had no connection, this function
    connects once more to find the reason.
    """
    if not isinstance(error, grpc.RpcError):
        return None
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return f"{target}: {error.details() or ''}"
    trouble = connection_trouble(target) if was_never_sent(error) else None
    return None if trouble is None else f"{target}: {trouble}"


# gRPC often reports only that the socket was closed. The functions below connect again to find the reason.

SECONDS = 3.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_NO_GRPC = "it does not support gRPC: {} names the port of another server, perhaps that of an RLX server"
_UNREACHABLE = "it is unreachable"
_NO_CERTIFICATE = "it closes the connection when it was shown no certificate, or one that it does not accept"


def connection_trouble(target: Target) -> str | None:
    """Connect and return why gRPC is impossible, as a clause that begins with "it"; None if no reason was found.

    Each wait for the server takes at most `SECONDS`.
    """
    host, _, port = target.address.rpartition(":")
    place = (host.strip("[]"), int(port))
    if target.ca is None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data is sent over this connection
        trouble = _tls_error(place, context)
        if trouble is None or "certificate" in trouble:
            return f"it uses TLS, and no authority is configured to check its certificate: set {target.keys}_ca"
        return _NO_GRPC.format(target.keys) if _answers_as_http1(place) else None
    context = client_context(target.ca.decode("ascii", "replace"))
    if target.certificate and target.key:
        # Python reads them from a file only. No other user can read this one.
        with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
            file.write(target.certificate + b"\n" + target.key)
            file.flush()
            context.load_cert_chain(file.name)
    trouble = _tls_error(place, context)
    if trouble == _NO_CERTIFICATE:  # a server that is ending does this too, but only once
        trouble = _tls_error(place, context)
    if trouble is None or trouble == _UNREACHABLE:
        return None
    key = f"{target.keys}_certificate and {target.keys}_key" if "shown" in trouble else f"{target.keys}_ca"
    return f"{trouble} (see {key})"


def _tls_error(place: tuple[str, int], context: ssl.SSLContext) -> str | None:
    """Return why a TLS connection failed; None if it succeeded."""
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(place, SECONDS) as plain:
            plain.settimeout(SECONDS)
            with context.wrap_socket(plain, server_hostname=place[0]) as secure:
                if secure.version() is None:  # the peer has disconnected, and Python skips the handshake
                    return _UNREACHABLE
                # With TLS 1.3, reading shows whether the certificate was accepted. A gRPC server sends first.
                try:
                    return None if secure.recv(1) else _NO_CERTIFICATE
                except (ConnectionError, ssl.SSLEOFError):
                    return _NO_CERTIFICATE
    except OSError as error:
        return reason_of(error) or _UNREACHABLE


def _answers_as_http1(place: tuple[str, int]) -> bool:
    """Return whether the server answers a gRPC client in HTTP/1, as RLX servers and web servers do."""
    try:
        with socket.create_connection(place, SECONDS) as plain:
            plain.settimeout(SECONDS)
            plain.sendall(_PREFACE)
            return plain.recv(5, socket.MSG_WAITALL) == b"HTTP/"
    except OSError:
        return False
