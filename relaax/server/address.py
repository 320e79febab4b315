"""Addresses that servers listen on."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any


class AddressError(Exception):
    """The address cannot be used. The message names the address and a remedy."""


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT into a pair; an IPv6 host may be in brackets. Raises AddressError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{address!r} is not an address; use HOST:PORT, such as localhost:7001")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 client on an IPv6 port
    return (mapped or address).is_loopback


def require_loopback(address: str, allow_anonymous: bool, authenticated: bool = False) -> None:
    """Refuse to serve the network unless peers must authenticate or anonymous access is allowed.

    Raises AddressError.
    """
    host, _ = split_address(address)
    if not allow_anonymous and not authenticated and not is_loopback(host):
        raise AddressError(
            f"{address} can be reached from other machines, and any program could use it; require a token (`relaax "
            "keys DIR` makes one for token_file), bind localhost for this machine alone, or pass --allow-anonymous in "
            "a trusted network"
        )


def require_private(address: str | None, allow_anonymous: bool, key: str = "status_bind") -> None:
    """Refuse to show the state of training to the network unless anonymous access is allowed. Raises AddressError.

    A token does not help: monitoring programs, load balancers and browsers have none. `key`: the configuration key that
    holds the address.
    """
    if address is not None and not allow_anonymous and not is_loopback(split_address(address)[0]):
        other = "; a configured token still protects the other port" if key == "status_bind" else ""
        raise AddressError(
            f"{key} {address} can be reached from other machines, and any program could read the state of training; "
            f"bind localhost, or pass --allow-anonymous{other}"
        )


def require_free(address: str) -> None:
    """Refuse an address if one of its resolved addresses is in use: for localhost:7000, 127.0.0.1:7000 or [::1]:7000.

    Otherwise some clients would reach this server and others would reach the other one. Raises AddressError.
    """
    host, port = split_address(address)
    hosts = [host, "127.0.0.1", "::1"] if host == "localhost" else [host]
    for name in hosts if port else []:
        with contextlib.suppress(OSError):  # an address family that this machine lacks cannot be in use
            for family, kind, protocol, _, target in _resolved(name, port):
                with socket.socket(family, kind, protocol) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    _require_free(probe, target, address)


def _require_free(probe: socket.socket, target: Any, address: str) -> None:
    try:
        probe.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(address, error, _name(*target[:2])) from None


def _resolved(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def listen(address: str, backlog: int = 1024) -> socket.socket:
    """Return a listening TCP socket; port 0 picks a free port. Raises AddressError."""
    require_free(address)
    listener = reserve(address)
    try:
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise _in_use(address, error) from None
    return listener


def reserve(address: str) -> socket.socket:
    """Return a bound socket that does not listen, which reserves an address for a server that starts later.

    Port 0 picks a free port. While the socket is open, Linux does not assign the port to a process that asks for any
    port. A process that asks for this port with SO_REUSEADDR, as servers do, can listen on it. Raises AddressError.
    """
    host, port = split_address(address)
    try:
        family, kind, protocol, _, target = _resolved(host, port)[0]
        reserved = socket.socket(family, kind, protocol)
    except OSError as error:
        raise cannot_listen(address, error) from None
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(target)
    except OSError as error:
        reserved.close()
        raise _in_use(address, error) from None
    return reserved


def _in_use(address: str, error: OSError, place: str = "") -> AddressError:
    """Return the error for an address in use. `place`: the resolved address."""
    where = f"{place}: " if place not in ("", address) else ""
    return cannot_listen(address, f"{where}{error.strerror}; use another port, or 0 for a free one")


def cannot_listen(address: str, why: object) -> AddressError:
    """Return the error for an address that this process cannot listen on."""
    return AddressError(f"cannot listen on {address}: {why}")


def name_of(listener: socket.socket) -> str:
    """Return the HOST:PORT that a listening socket is bound to."""
    return _name(*listener.getsockname()[:2])


def served_at(connection: socket.socket) -> str:
    """Return HOST:PORT of the server that accepted a connection, with this host's name, for display."""
    host = socket.gethostname()
    try:
        here = connection.getsockname()
    except OSError:  # the client has disconnected already
        return host
    return _name(host, here[1]) if isinstance(here, tuple) else host


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
