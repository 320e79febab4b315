"""Block networks in the kernel: gRPC accepts and reads a connection before this process can refuse it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from relaax.server.security.strikes import SECONDS, Strikes, network_of

_log = logging.getLogger(__name__)

LIMIT = 4
"""Connections of a network that sent much without a token, within a minute, after which it is blocked for a minute."""
MAX_BLOCKED = 256
"""Networks that are blocked at a time; of more, the last ones. A kernel may have memory for fewer: Linux before 6.8 for
about 90.
"""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_NETWORK_HEADER = 0xFFF00000  # added to offsets within the IP header
_LOAD_WORD, _LOAD_BYTE, _IF_EQUAL, _AND, _RETURN = 0x20, 0x30, 0x15, 0x54, 0x06
_SOURCE = {4: 12, 6: 8}
_ACCEPT, _DROP = 0xFFFFFFFF, 0


class AddressFilter:
    """Networks whose new connections the kernel drops, by a filter on the listening sockets of a port.

    Connections that exist are not affected. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._strikes = Strikes(LIMIT, clock)
        self._clock = clock
        self._until: dict[str, float] = {}
        self._applied: list[str] = []

    def add(self, host: str) -> None:
        """Count a connection of this address that sent much without a token."""
        if self._strikes.add(host):
            self._until[network_of(host)] = self._clock() + SECONDS
            _log.warning(
                "%d connections from %s in a minute sent much and showed no token: new ones are blocked for %g s",
                *(LIMIT, host, SECONDS),
            )

    def apply(self, port: int) -> None:
        """Make the listening sockets of this port drop what is blocked now."""
        now = self._clock()
        self._until = {network: until for network, until in self._until.items() if until > now}
        blocked = list(self._until)[-MAX_BLOCKED:]
        if blocked == self._applied:
            return
        self._applied = blocked
        for listener in _listeners(port):
            try:
                _attach(listener, blocked)
            except OSError as error:
                _log.warning("no addresses can be blocked: the system refuses a filter: %s", error.strerror)
            finally:
                listener.detach()


def _listeners(port: int) -> Iterator[socket.socket]:
    """Return the listening sockets of a port. The caller detaches them: they are gRPC's."""
    for name in os.listdir("/dev/fd"):
        try:
            found = socket.socket(fileno=int(name))
        except OSError:
            continue
        try:
            listens = (
                found.family in (socket.AF_INET, socket.AF_INET6)
                and found.getsockname()[1] == port
                and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            )
        except OSError:
            listens = False
        if listens:
            yield found
        else:
            found.detach()


def _attach(listener: socket.socket, networks: Sequence[str]) -> None:
    """Drop connections of these networks, or of the last of them if the kernel has no memory for a longer filter."""
    try:
        _set_filter(listener, networks)
    except OSError as error:
        if error.errno != errno.ENOMEM or not networks:
            raise
        with contextlib.suppress(OSError):  # there may be none
            listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        try:
            _set_filter(listener, networks)
        except OSError:
            _attach(listener, networks[(len(networks) + 1) // 2 :])


def _set_filter(listener: socket.socket, networks: Collection[str]) -> None:
    code = b"".join(_program(networks))
    memory = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(memory))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _program(networks: Collection[str]) -> Iterator[bytes]:
    """Return the instructions of a socket filter (classic BPF). IPv6 networks are compared by their first 64 bits."""
    for name in networks:
        network = ipaddress.ip_network(name)
        version, begin = network.version, network.network_address.packed
        words = [int.from_bytes(begin[at : at + 4], "big") for at in ((0,) if version == 4 else (0, 4))]
        yield _instruction(_LOAD_BYTE, _NETWORK_HEADER)
        yield _instruction(_AND, 0xF0)
        yield _instruction(_IF_EQUAL, version << 4, if_false=2 * len(words) + 1)
        for number, word in enumerate(words):
            yield _instruction(_LOAD_WORD, _NETWORK_HEADER + _SOURCE[version] + 4 * number)
            yield _instruction(_IF_EQUAL, word, if_false=2 * (len(words) - number) - 1)
        yield _instruction(_RETURN, _DROP)
    yield _instruction(_RETURN, _ACCEPT)


def _instruction(code: int, value: int, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, 0, if_false, value)
