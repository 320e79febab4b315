"""Limits for the connections of a port: excess, idle and greedy ones are closed.

A greedy connection sends too many bytes without a token. gRPC accepts and reads a connection before this process can
refuse it, so a filter in the kernel drops new connections of greedy networks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import ipaddress
import logging
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from relaax.server.security.strikes import SECONDS, DisconnectionLog, Strikes, network_of

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16_384
"""Maximum number of connections of a port, at most half of the process's descriptors. Others are closed at once."""
MAX_STRANGERS = 1_024
"""Maximum number of strangers: connections that have made no call that needs a token.

It is at most a quarter of the maximum of all connections. Beyond it, connections of the network with the most strangers
are closed.
"""
STRANGER_SECONDS = 30.0
"""Seconds without a call after which a connection without the token is closed."""
NEW_SECONDS = 2.0
"""Seconds for which a new connection stays open even if there are too many connections."""
STRANGER_BYTES = 2**16
"""Bytes that a connection without the token may send at once: enough for a TLS handshake and a first call with a wrong
token. If several connections of an address send more, the address is blocked: see `AddressFilter`.
"""
REFUSED_BYTES = 2**14
"""Bytes that a connection may send at once if one of its calls was refused for its token, or if it has ended."""
OVER_SECONDS = 0.5
"""Seconds for which a connection without an admitted or refused call may exceed its allowance of bytes.

A first message can arrive before its call is admitted.
"""
STRANGER_BYTES_PER_SECOND = 2**10
"""Bytes that a connection without the token may send per second in addition, for health checks."""
WORKERS = 16
"""Number of worker ids kept for a connection, because a worker has another id after a rollback."""

SILENT, CROWDED, GREEDY = "silent", "crowded", "greedy"
_PIECE_BYTES, _PIECES = 2**20, 64  # the kernel buffers 6 MB of a connection by default
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # `tcpi_bytes_received` in the kernel's `struct tcp_info`


class _End(NamedTuple):
    """The remote end of a connection."""

    host: str
    port: int


@dataclass(slots=True)
class _GrpcConnection:
    descriptor: int
    inode: int
    """Inode of the socket: a later connection may come from the same address and port."""
    since: float
    last_call: float
    proven: bool = False
    admitted: bool = False
    """Whether a call that needs a token was admitted: the token was right, or the server requires none."""
    refused: bool = False
    """Whether a call was refused because of its token."""
    received: int = 0
    """Bytes received until the last check."""
    over_since: float | None = None
    """Time at which it exceeded its allowance of bytes."""
    closed: bool = False
    """Whether it was closed here. gRPC may not have noticed yet."""

    def was_greedy(self, now: float) -> bool:
        """Return whether a connection that the peer has closed exceeded the allowance without an admitted call."""
        return not (self.admitted or self.closed) and self.received > _allowance(now - self.since, True)

    def is_greedy(self, now: float, waited: float) -> bool:
        """Return whether it has exceeded the allowance of a connection without an admitted call for long enough."""
        self.received = _received(self.descriptor) or self.received
        if self.admitted or self.received <= _allowance(now - self.since, self.refused):
            self.over_since = None
            return False
        if self.over_since is None:
            self.over_since = now
        return self.refused or now - self.over_since >= OVER_SECONDS + waited


class Connections:
    """A monitor of a gRPC port's connections, whose sockets it finds in the process's table of descriptors.

    gRPC limits their number too, but always closes the newest one. This class first closes connections that have made
    no call that needs a token. It begins with the network that has the most of them, and there with the connection that
    has been silent longest. A worker whose connection is closed reconnects.

    gRPC reads headers before a call can be refused, so the bytes of a connection without an admitted call are limited.
    `clock` returns seconds.
    """

    def __init__(
        self,
        disconnections: DisconnectionLog,
        on_lost: Callable[[str], None] = lambda worker_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_lost` is called with the id of each worker that pulled parameters over a connection that has ended."""
        self.limit = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._strangers = min(MAX_STRANGERS, self.limit // 4)
        self._target = self.limit - self.limit // 16
        self._disconnections = disconnections
        self._on_lost = on_lost
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[_End, deque[str]] = {}  # ids by connection
        self._calls: dict[str, bool] = {}  # peers with calls since the last check: whether one needed a token
        self._admitted: set[str] = set()  # peers with an admitted call since the last check
        self._refused: set[str] = set()  # peers with a refused call since the last check
        self._known: dict[_End, _GrpcConnection] = {}
        self._filter = AddressFilter(clock)
        self._closed: Counter[str] = Counter({SILENT: 0, CROWDED: 0, GREEDY: 0})

    @property
    def counts(self) -> dict[str, int]:
        """Number of connections at the last check with (`proven`) and without (`strange`) a call that needs a token."""
        proven = sum(connection.proven for connection in list(self._known.values()))
        return {"proven": proven, "strange": len(self._known) - proven}

    @property
    def closed(self) -> dict[str, int]:
        """Connections closed so far, by reason: `SILENT`, `CROWDED` or `GREEDY`."""
        return dict(self._closed)

    def note_call(self, peer: str, proven: bool) -> None:
        """Note a call from this peer. `proven`: the call needs a token."""
        with self._lock:
            self._calls[peer] = proven or self._calls.get(peer, False)

    def note_admitted(self, peer: str) -> None:
        """Note an admitted call of this peer that needs a token. Its message may still be incomplete."""
        with self._lock:
            self._admitted.add(peer)

    def note_refused(self, peer: str) -> None:
        """Note a call of this peer that was refused because of its token."""
        with self._lock:
            self._refused.add(peer)

    def note_pull(self, peer: str, worker_id: str) -> None:
        """Note that a worker has pulled parameters over the connection of this peer, which it continues to use."""
        end = _end_of(peer)
        if end.port:
            with self._lock:
                workers = self._workers.setdefault(end, deque(maxlen=WORKERS))
                if worker_id not in workers:
                    workers.append(worker_id)

    def check(self, port: int, waited: float = 0.0) -> bool:
        """Close connections that exceed limits. Return whether others may have to be closed soon.

        Called every second or more often, by one thread. `waited`: seconds for which a call with the token has waited
        for a thread. Until it has a thread, it cannot be admitted.
        """
        now = self._clock()
        self._update(port, now)
        for end, connection in self._known.items():
            if connection.closed:
                continue
            if not connection.proven and now - max(connection.last_call, connection.since) > STRANGER_SECONDS:
                what = f"a connection without a call for {STRANGER_SECONDS:g} s"
                self._close(end, connection, port, SILENT, what)
            elif connection.is_greedy(now, waited):
                self._close(end, connection, port, GREEDY, "a connection that sent too much without a token")
                self._filter.add(end.host)
        self._filter.apply(port)
        for end in self._excess(now):
            self._close(end, self._known[end], port, CROWDED, "a connection beyond the limit")
        return any(each.over_since is not None and not each.closed for each in self._known.values())

    def _update(self, port: int, now: float) -> None:
        """Update the known connections, and apply the calls since the last check."""
        with self._lock:
            calls, self._calls = self._calls, {}
            admitted, self._admitted = self._admitted, set()
            refused, self._refused = self._refused, set()
            with_workers = list(self._workers)  # before connections are listed, so that later ones are not missed
        known = {}
        for descriptor, inode, end in _connected(port):
            connection = self._known.get(end)
            if connection is None or connection.inode != inode:
                connection = _GrpcConnection(descriptor, inode, now, now)
            connection.descriptor = descriptor
            known[end] = connection
        for peer, proven in calls.items():
            if (there := known.get(_end_of(peer))) is not None:
                there.last_call, there.proven = now, there.proven or proven
        with_admitted = {_end_of(peer) for peer in admitted}
        for end in with_admitted:
            if end in known:
                known[end].admitted = True
        for peer in refused:
            if (there := known.get(_end_of(peer))) is not None:
                there.refused = True
        for end, each in self._known.items():
            if known.get(end) is not each and end not in with_admitted and each.was_greedy(now):
                self._filter.add(end.host)
        self._known = known
        for end in with_workers:
            if end not in known:
                with self._lock:
                    gone = self._workers.pop(end)
                for worker_id in gone:
                    self._on_lost(worker_id)

    def _excess(self, now: float) -> list[_End]:
        """Return the excess connections."""
        there = {end: each for end, each in self._known.items() if not each.closed}
        old = {end: each for end, each in there.items() if now - each.since >= NEW_SECONDS}
        strangers = {end: each for end, each in old.items() if not each.proven}
        excess = len(there) - self._target
        closing = _first_to_close(strangers, max(len(strangers) - self._strangers, excess))
        proven = {end: each for end, each in old.items() if each.proven}
        return [*closing, *_first_to_close(proven, excess - len(closing))]

    def _close(self, end: _End, connection: _GrpcConnection, port: int, why: str, what: str) -> None:
        """Close a connection, so that gRPC sees it as closed by the peer.

        If the descriptor belongs to another socket by now, leave it open.
        """
        with contextlib.suppress(OSError):
            own = os.dup(connection.descriptor)
            try:
                if _other_end(own, port) == end:
                    _shut(own)
                    connection.closed = True
                    self._closed[why] += 1
                    self._disconnections.add(end.host, what)
            finally:
                os.close(own)


def _allowance(seconds: float, refused: bool) -> float:
    """Return how many bytes a connection without an admitted call may send within `seconds`."""
    return (REFUSED_BYTES if refused else STRANGER_BYTES) + STRANGER_BYTES_PER_SECOND * seconds


class _Borrowed(socket.socket):
    """The socket of a descriptor that gRPC owns. The context manager leaves it open. Raises OSError if it is closed."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(fileno=descriptor)

    def __exit__(self, *_: object) -> None:
        self.detach()


def _received(descriptor: int) -> int:
    """Return the number of bytes received over a connection; 0 if it has ended or the system does not count them."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    try:
        with _Borrowed(descriptor) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
    except OSError:
        return 0
    return 0 if len(info) < _RECEIVED_AT + _RECEIVED.size else int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def _shut(descriptor: int) -> None:
    with _Borrowed(descriptor) as sock:
        sock.shutdown(socket.SHUT_RDWR)
        for _ in range(_PIECES):  # drop received bytes, which gRPC would still read
            if not sock.recv(_PIECE_BYTES, socket.MSG_DONTWAIT):
                break


def _first_to_close(connections: dict[_End, _GrpcConnection], count: int) -> list[_End]:
    """Return the first `count` connections to close.

    The network with the most connections is first, and in each network the longest silent connection.
    """
    if count <= 0:
        return []
    rank: Counter[str] = Counter()
    ranked = []
    for end, connection in sorted(connections.items(), key=lambda item: -item[1].last_call):
        network = network_of(end.host)
        rank[network] += 1
        ranked.append((-rank[network], connection.last_call, end))
    return [end for _, _, end in sorted(ranked)[:count]]


def _connected(port: int) -> Iterator[tuple[int, int, _End]]:
    """Yield descriptors, inodes and remote ends of this process's TCP connections to its own port."""
    for name in os.listdir("/dev/fd"):
        end = _other_end(int(name), port)
        if end is None:
            continue
        try:
            inode = os.fstat(int(name)).st_ino
        except OSError:
            continue  # closed meanwhile
        yield int(name), inode, end


def _other_end(descriptor: int, port: int) -> _End | None:
    """Return the remote end; None if the descriptor is not a connection of the port or no longer exists."""
    try:
        with _Borrowed(descriptor) as found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] == port:
                return _end(*found.getpeername()[:2])
    except OSError:
        pass  # not a socket, a listener, or closed meanwhile
    return None


def _end_of(peer: str) -> _End:
    """Convert a peer in gRPC's notation, such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _end(host.strip("[]"), int(port) if port.isdigit() else 0)


def _end(host: str, port: int) -> _End:
    host = host.partition("%")[0]
    return _End(host.removeprefix("::ffff:") if "." in host else host, port)


LIMIT = 4
"""Number of greedy connections of a network within a minute after which it is blocked for a minute."""
MAX_BLOCKED = 256
"""Maximum number of blocked networks. If there are more, only those blocked last stay blocked.

A kernel may have memory for fewer: Linux before 6.8 for about 90.
"""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_NETWORK_HEADER = 0xFFF00000  # added to offsets within the IP header
_LOAD_WORD, _LOAD_BYTE, _IF_EQUAL, _AND, _RETURN = 0x20, 0x30, 0x15, 0x54, 0x06
_SOURCE = {4: 12, 6: 8}
_ACCEPT, _DROP = 0xFFFFFFFF, 0


class AddressFilter:
    """Blocked networks: the kernel drops their new connections, by a filter on the listening sockets of a port.

    Existing connections are not affected. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._strikes = Strikes(LIMIT, clock)
        self._clock = clock
        self._until: dict[str, float] = {}
        self._applied: list[str] = []

    def add(self, host: str) -> None:
        """Count a greedy connection of this address."""
        if self._strikes.add(host):
            self._until[network_of(host)] = self._clock() + SECONDS
            _log.warning(
                "%d connections from %s in a minute sent too much without a token: new ones are blocked for %g s",
                *(LIMIT, host, SECONDS),
            )

    def apply(self, port: int) -> None:
        """Set the filter of this port's listening sockets to the networks that are blocked now."""
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
                _log.warning("cannot block addresses: the system refuses a socket filter: %s", error.strerror)


def _listeners(port: int) -> Iterator[socket.socket]:
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError), _Borrowed(int(name)) as found:
            if (
                found.family in (socket.AF_INET, socket.AF_INET6)
                and found.getsockname()[1] == port
                and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            ):
                yield found


def _attach(listener: socket.socket, networks: Sequence[str]) -> None:
    """Drop new connections of these networks.

    While the kernel lacks memory for the filter, omit the older half of the networks.
    """
    try:
        _set_filter(listener, networks)
    except OSError as error:
        if error.errno != errno.ENOMEM or not networks:
            raise
        with contextlib.suppress(OSError):  # if there is no filter to detach
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
    """Yield the instructions of a socket filter (classic BPF), which compares the first 64 bits of IPv6 addresses."""
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
