"""Open channels to a server: over TLS if an authority is known, and with a token if there is one."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from relaax.bounded_file import read_bounded_text
from relaax.tls import client_context, reason_of
from relaax.transport.grpc_options import MESSAGE_OVERHEAD, client_options

FILE = "@"
"""Begins the name of a file with the addresses of all shards, one on each line in their order, instead of one."""


def read_addresses(text: str) -> list[str]:
    """Return the addresses, HOST:PORT, that are in the file of `@FILE`. Raises ValueError with a sentence."""
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
        raise ValueError(f"{file} has no address")
    return lines


class Moving:
    """The address of one server, which line `index` of a file holds; the last one known if that cannot be read.

    Whoever writes the file replaces it by another one (`relaax.atomic_file`), so that no half of it is read.
    """

    def __init__(self, text: str, index: int) -> None:
        self._text = text
        self._index = index
        self._seen: tuple[int, int] | None = None
        self._address = read_addresses(text)[index]

    def now(self) -> str:
        """Return HOST:PORT."""
        try:
            found = os.stat(self._text.removeprefix(FILE))
            seen = found.st_ino, found.st_mtime_ns
            if seen != self._seen:
                self._address = read_addresses(self._text)[self._index]
                self._seen = seen
        except (OSError, ValueError, IndexError):
            pass
        return self._address


class FollowingChannel(grpc.Channel):
    """A channel that is opened anew, by `opened`, once `address` returns another one.

    A call that has failed finds the new place if it is made again. Calls that are under way end as cancelled.
    """

    def __init__(self, address: Callable[[], str], opened: Callable[[str], grpc.Channel]) -> None:
        self._address, self._opened = address, opened
        self._place = address()
        self._channel = opened(self._place)
        self._lock = threading.Lock()

    def current(self) -> grpc.Channel:
        """Return the channel to where the server is now."""
        with self._lock:
            place = self._address()
            if place != self._place:
                before, self._channel, self._place = self._channel, self._opened(place), place
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

    def __enter__(self) -> FollowingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method of the service, called over the channel of the moment."""

    def __init__(
        self, channel: FollowingChannel, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._following = channel
        self._kind, self._arguments, self._options = kind, arguments, options
        self._channel: grpc.Channel | None = None
        self._method: Any = None

    def _now(self) -> Any:
        channel = self._following.current()
        if channel is not self._channel:
            self._method = getattr(channel, self._kind)(*self._arguments, **self._options)
            self._channel = channel
        return self._method

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._now()(*arguments, **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """Return the call as a future."""
        return self._now().future(*arguments, **options)


AUTHORIZATION = "authorization"
"""The metadata key under which the token goes, as `Bearer TOKEN`."""

_NO_CONNECTION = "failed to connect"  # in contrast to one that was there and broke


@dataclass(frozen=True, slots=True)
class Target:
    """The address of a server, with the credentials to connect to it.

    `ca`: the authority (PEM) that its certificate is checked by; TLS is used if it is given. `certificate` and `key`
    (PEM): what this side shows, if the server asks for it. None of the secrets appears in `repr`. `service`: what kind
    of server it is, for messages; `keys`: what the keys of this side's configuration for it begin with. `moving`: where
    it is at each moment, if it may move; `address` is where it was.
    """

    address: str
    token: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    service: str = field(default="parameter server", repr=False)
    keys: str = field(default="relaax-rlx-server.parameter_server", repr=False)
    moving: Moving | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.service} {self.address}"

    def at(self, address: str) -> Target:
        """Return a copy for another address."""
        return replace(self, address=address)

    def following(self, moving: Moving) -> Target:
        """Return a copy for a server that may move."""
        return replace(self, address=moving.now(), moving=moving)


def open_channel(target: Target, longest: int = MESSAGE_OVERHEAD) -> grpc.Channel:
    """Return a channel for messages of up to so many bytes. Every call over it shows the target's token.

    Made in the process that uses it: a channel does not survive a fork. It connects with its first call.
    """
    if target.moving is not None:
        return FollowingChannel(target.moving.now, lambda address: _opened(target.at(address), longest))
    return _opened(target, longest)


def _opened(target: Target, longest: int) -> grpc.Channel:
    options = client_options(longest)
    if target.ca is None:
        channel = grpc.insecure_channel(target.address, options)
    else:
        credentials = grpc.ssl_channel_credentials(target.ca, target.key, target.certificate)
        channel = grpc.secure_channel(target.address, credentials, options)
    return grpc.intercept_channel(channel, _Shown(target.token)) if target.token else channel


_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


def is_away(error: BaseException) -> bool:
    """Return whether the same call may succeed later: the server is away, slow or stopping, or was disconnected."""
    if not isinstance(error, grpc.RpcError):
        return False
    code: grpc.StatusCode = error.code()
    return code in _AWAY or (code is grpc.StatusCode.INTERNAL and "RST_STREAM" in (error.details() or ""))


def authentication_trouble(error: BaseException, target: Target) -> str | None:
    """Return a sentence if a call failed because one side could not prove its identity, or speaks no gRPC.

    A retry does not help. None if it failed for another reason. If the connection itself failed, it is dialled once
    more to find out.
    """
    if not isinstance(error, grpc.RpcError):
        return None
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return f"{target}: {error.details() or ''}"
    trouble = connection_trouble(target) if never_arrived(error) else None
    return None if trouble is None else f"{target}: {trouble}"


def never_arrived(error: grpc.RpcError) -> bool:
    """Return whether a call failed before it left: there was no connection."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and _NO_CONNECTION in (error.details() or "")


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: list[tuple[str, str]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Shown(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Adds a token to every call."""

    def __init__(self, token: str) -> None:
        self._pair = (AUTHORIZATION, f"Bearer {token}")

    def _details(self, call: Any) -> Any:
        metadata = [*(call.metadata or ()), self._pair]
        return _Details(call.method, call.timeout, metadata, call.credentials, call.wait_for_ready, call.compression)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._details(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(self._details(client_call_details), request)

    def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._details(client_call_details), request_iterator)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(self._details(client_call_details), request_iterator)


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
    if trouble is None or trouble == _UNREACHABLE:
        return None
    key = f"{target.keys}_certificate and {target.keys}_key" if "shown" in trouble else f"{target.keys}_ca"
    return f"{trouble} (see {key})"


_NO_GRPC = "it speaks no gRPC: {} names the port of another server, perhaps that of an RLX server"
_UNREACHABLE = "it is away"
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
        return reason_of(error) or _UNREACHABLE


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
