"""Addresses to listen at."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Any


class AddressError(Exception):
    """The address cannot be used. The message names it and the way out."""


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT as a pair; an IPv6 host may stand in brackets. Raises AddressError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise AddressError(f"{address!r} is no address; one is HOST:PORT, such as localhost:7001")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # a client of IPv4 at a port of IPv6
    return (mapped or address).is_loopback


def require_loopback(address: str, allow_anonymous: bool, authenticated: bool = False) -> None:
    """Refuse to serve anybody on the network unless peers must prove who they are, or that was asked for.

    Raises AddressError.
    """
    host, _ = split_address(address)
    if not allow_anonymous and not authenticated and not is_loopback(host):
        raise AddressError(
            f"{address} can be reached from other machines, and anybody there could use it; `relaax keys DIR` makes a "
            "token to ask for (token_file), localhost is for this machine alone, and --allow-anonymous is for a "
            "network that is trusted"
        )


def require_private(address: str | None, allow_anonymous: bool) -> None:
    """Refuse to tell anybody on the network how training goes unless that was asked for. Raises AddressError.

    A token cannot help: programs that watch, balancers among them, have none to show.
    """
    if address is not None and not allow_anonymous and not is_loopback(split_address(address)[0]):
        raise AddressError(
            f"status_bind {address} can be reached from other machines, and anybody there could see how training goes; "
            "bind localhost, or say --allow-anonymous: a token that is set counts at the other port all the same"
        )


def require_free(address: str) -> None:
    """Refuse an address of whose meanings one is taken: of localhost:7000, 127.0.0.1:7000 or [::1]:7000.

    Who listened at the other one would be found by some, and who has taken it by others. Raises AddressError.
    """
    host, port = split_address(address)
    hosts = [host, "127.0.0.1", "::1"] if host == "localhost" else [host]
    for name in hosts if port else []:
        with contextlib.suppress(OSError):  # what this machine does not have cannot be taken
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
    """A listening TCP socket; port 0 picks a free one. Raises AddressError."""
    require_free(address)
    listener = reserve(address)
    try:
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise _in_use(address, error) from None
    return listener


def reserve(address: str) -> socket.socket:
    """Keep an address for a server that is yet to start: bound, and not listened at; port 0 picks a free one.

    As long as the socket is open nobody gets this port who asks for any; who asks for this one can listen at it, with
    SO_REUSEADDR as servers have it. So it is on Linux. Raises AddressError.
    """
    host, port = split_address(address)
    try:
        family, kind, protocol, _, target = _resolved(host, port)[0]
        reserved = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressError(f"{address} cannot be listened at: {error}") from None
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(target)
    except OSError as error:
        reserved.close()
        raise _in_use(address, error) from None
    return reserved


def _in_use(address: str, error: OSError, place: str = "") -> AddressError:
    """`place`: which of the meanings of `address` it is about."""
    where = f"{place}: " if place not in ("", address) else ""
    return AddressError(f"{address} cannot be listened at: {where}{error.strerror}; another port, or 0 for a free one")


def name_of(listener: socket.socket) -> str:
    """HOST:PORT that a listening socket is bound to."""
    return _name(*listener.getsockname()[:2])


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
