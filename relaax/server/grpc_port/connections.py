"""Bound the connections of a port: close excess, idle and greedy ones, which send much without a token."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from relaax.server.grpc_port.address_filter import AddressFilter
from relaax.server.grpc_port.disconnection_log import DisconnectionLog
from relaax.server.security.strikes import network_of

MAX_CONNECTIONS = 16_384
"""The maximum for a port, or half of the process's descriptors; further connections are closed at once."""
MAX_STRANGERS = 1_024
"""The maximum of connections without a token, if one is required, or a quarter of the above; beyond it one of the
address with the most of them is closed.
"""
STRANGER_SECONDS = 30.0
"""Seconds without a call after which such a connection is closed."""
NEW_SECONDS = 2.0
"""Seconds for which a connection stays, however many there are."""
STRANGER_BYTES = 2**16
"""Bytes that such a connection may send at once: a TLS handshake, and a first call with a wrong token. If connections
of an address have sent more, it is blocked: see `AddressFilter`.
"""
REFUSED_BYTES = 2**14
"""Bytes that a connection may send at once if one of its calls was refused for its token, or if it has ended."""
OVER_SECONDS = 0.5
"""Seconds after which a connection without an admitted or refused call is closed for its bytes: a first message can
arrive before its call is admitted.
"""
STRANGER_BYTES_PER_SECOND = 2**10
"""Bytes that it may send in addition, in the long run: health checks."""
WORKERS = 16
"""The last workers that are remembered of a connection: a worker has another id after a roll-back."""

SILENT, CROWDED, GREEDY = "silent", "crowded", "greedy"
_PIECE_BYTES, _PIECES = 2**20, 64  # the kernel holds 6 MB of a connection by default
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # `tcpi_bytes_received` in the kernel's `struct tcp_info`


class _End(NamedTuple):
    """The other end of a connection."""

    host: str
    port: int


@dataclass(slots=True)
class _GrpcConnection:
    descriptor: int
    inode: int
    """Inode of the socket: a later connection may come from the same address and port."""
    since: float
    heard: float
    proven: bool = False
    admitted: bool = False
    """Whether it has begun a call that needs a token, and has shown one if the server asks for it."""
    refused: bool = False
    """Whether a call was refused for its token."""
    received: int = 0
    """Bytes, at the last look."""
    over_since: float | None = None
    """Since when it has sent more than it may."""
    closed: bool = False
    """Whether it was closed here; gRPC may still have to notice."""

    def has_left_greedily(self, now: float) -> bool:
        """Return whether it has ended, at its own will, after it had sent much without an admitted call."""
        return not (self.admitted or self.closed) and self.received > _allowance(now - self.since, True)

    def is_greedy(self, now: float, waited: float) -> bool:
        """Return whether it has sent more than a connection without an admitted call may, for long enough."""
        self.received = _received(self.descriptor) or self.received
        if self.admitted or self.received <= _allowance(now - self.since, self.refused):
            self.over_since = None
            return False
        if self.over_since is None:
            self.over_since = now
        return self.refused or now - self.over_since >= OVER_SECONDS + waited


class Connections:
    """Watches the connections of a port whose sockets are gRPC's, by the process's own table of descriptors.

    gRPC bounds their number, but closes the newest then, whose ever it is. Here those that have made no call that
    needs a token go first, those of the address with the most of them before others', the longest silent before others.
    gRPC reads headers before a call can be refused, so the bytes of a connection without an admitted call are bounded.
    Workers whose connection is closed come again by themselves. `clock` gives seconds.
    """

    def __init__(
        self,
        complaints: DisconnectionLog,
        lost: Callable[[str], None] = lambda worker_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lost` is called with the id of each worker that fetched parameters over a connection that has ended."""
        self.most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._strangers = min(MAX_STRANGERS, self.most // 4)
        self._room = self.most - self.most // 16
        self._complaints = complaints
        self._on_lost = lost
        self._clock = clock
        self._lock = threading.Lock()
        self._workers: dict[_End, deque[str]] = {}  # by the connection over which they came
        self._heard: dict[str, bool] = {}  # peers, in gRPC's words, since the last look: whether one is proven
        self._admitted: set[str] = set()  # the same: those with an admitted call
        self._refused: set[str] = set()  # the same: those with a refused call
        self._known: dict[_End, _GrpcConnection] = {}
        self._filter = AddressFilter(clock)
        self._closed: Counter[str] = Counter({SILENT: 0, CROWDED: 0, GREEDY: 0})

    @property
    def counts(self) -> dict[str, int]:
        """Connections at the last look, `proven` and `strange`."""
        proven = sum(connection.proven for connection in list(self._known.values()))
        return {"proven": proven, "strange": len(self._known) - proven}

    @property
    def closed(self) -> dict[str, int]:
        """Connections closed so far, by reason: `SILENT`, `CROWDED` or `GREEDY`."""
        return dict(self._closed)

    def heard(self, peer: str, proven: bool) -> None:
        """Note a call from this peer. `proven`: it is one that needs a token."""
        with self._lock:
            self._heard[peer] = proven or self._heard.get(peer, False)

    def admitted(self, peer: str) -> None:
        """Note a call of this peer that needs a token and was admitted; its message may still be incomplete."""
        with self._lock:
            self._admitted.add(peer)

    def refused(self, peer: str) -> None:
        """Note a call of this peer that was refused for its token."""
        with self._lock:
            self._refused.add(peer)

    def pulled(self, peer: str, worker_id: str) -> None:
        """Note that a worker has fetched parameters as this peer: over the connection that it continues to use."""
        end = _end_of(peer)
        if end.port:
            with self._lock:
                workers = self._workers.setdefault(end, deque(maxlen=WORKERS))
                if worker_id not in workers:
                    workers.append(worker_id)

    def look(self, port: int, waited: float = 0.0) -> bool:
        """Close connections if necessary; return whether others may have to be closed soon.

        Called every second or more often, by one thread. `waited`: seconds for which a call with the token has waited
        for a thread, in which it cannot be admitted.
        """
        now = self._clock()
        self._take_in(port, now)
        for end, connection in self._known.items():
            if connection.closed:
                continue
            if not connection.proven and now - max(connection.heard, connection.since) > STRANGER_SECONDS:
                what = f"a connection without a call for {STRANGER_SECONDS:g} s"
                self._close(end, connection, port, SILENT, what)
            elif connection.is_greedy(now, waited):
                self._close(end, connection, port, GREEDY, "a connection that sent much and showed no token")
                self._filter.add(end.host)
        self._filter.apply(port)
        for end in self._crowding(now):
            self._close(end, self._known[end], port, CROWDED, "a connection beside too many")
        return any(each.over_since is not None and not each.closed for each in self._known.values())

    def _take_in(self, port: int, now: float) -> None:
        """Note the present connections, and the calls since the last time."""
        with self._lock:
            heard, self._heard = self._heard, {}
            admitted, self._admitted = self._admitted, set()
            refused, self._refused = self._refused, set()
            with_workers = list(self._workers)  # before the look: who comes meanwhile is there
        known = {}
        for descriptor, inode, end in _connected(port):
            connection = self._known.get(end)
            if connection is None or connection.inode != inode:
                connection = _GrpcConnection(descriptor, inode, now, now)
            connection.descriptor = descriptor
            known[end] = connection
        for peer, proven in heard.items():
            if (there := known.get(_end_of(peer))) is not None:
                there.heard, there.proven = now, there.proven or proven
        with_admitted = {_end_of(peer) for peer in admitted}
        for end in with_admitted:
            if end in known:
                known[end].admitted = True
        for peer in refused:
            if (there := known.get(_end_of(peer))) is not None:
                there.refused = True
        for end, each in self._known.items():
            if known.get(end) is not each and end not in with_admitted and each.has_left_greedily(now):
                self._filter.add(end.host)
        self._known = known
        for end in with_workers:
            if end not in known:
                with self._lock:
                    gone = self._workers.pop(end)
                for worker_id in gone:
                    self._on_lost(worker_id)

    def _crowding(self, now: float) -> list[_End]:
        """Return the excess connections."""
        there = {end: each for end, each in self._known.items() if not each.closed}
        grown = {end: each for end, each in there.items() if now - each.since >= NEW_SECONDS}
        strangers = {end: each for end, each in grown.items() if not each.proven}
        beyond = len(there) - self._room
        going = _first(strangers, max(len(strangers) - self._strangers, beyond))
        proven = {end: each for end, each in grown.items() if each.proven}
        return [*going, *_first(proven, beyond - len(going))]

    def _close(self, end: _End, connection: _GrpcConnection, port: int, why: str, what: str) -> None:
        """Close a connection: gRPC sees it as ended by the other side. If the descriptor has another owner now, it
        stays.
        """
        with contextlib.suppress(OSError):
            own = os.dup(connection.descriptor)
            try:
                if _other_end(own, port) == end:
                    _shut(own)
                    connection.closed = True
                    self._closed[why] += 1
                    self._complaints.add(end.host, what)
            finally:
                os.close(own)


def _allowance(seconds: float, refused: bool) -> float:
    """Return the maximum of bytes that a connection without an admitted call may send within `seconds`."""
    return (REFUSED_BYTES if refused else STRANGER_BYTES) + STRANGER_BYTES_PER_SECOND * seconds


def _received(descriptor: int) -> int:
    """Return the bytes received over a connection; 0 if it has ended or the system does not count them."""
    if not hasattr(socket, "TCP_INFO"):
        return 0
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
    except OSError:
        return 0
    finally:
        sock.detach()
    return 0 if len(info) < _RECEIVED_AT + _RECEIVED.size else int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def _shut(descriptor: int) -> None:
    sock = socket.socket(fileno=descriptor)
    try:
        sock.shutdown(socket.SHUT_RDWR)
        for _ in range(_PIECES):  # gRPC would read what has arrived already
            if not sock.recv(_PIECE_BYTES, socket.MSG_DONTWAIT):
                break
    finally:
        sock.detach()


def _first(connections: dict[_End, _GrpcConnection], count: int) -> list[_End]:
    """Return the first `count` of them: of the network with the most, the longest silent first."""
    if count <= 0:
        return []
    rank: Counter[str] = Counter()
    ranked = []
    for end, connection in sorted(connections.items(), key=lambda item: -item[1].heard):
        network = network_of(end.host)
        rank[network] += 1
        ranked.append((-rank[network], connection.heard, end))
    return [end for _, _, end in sorted(ranked)[:count]]


def _connected(port: int) -> Iterator[tuple[int, int, _End]]:
    """Return the descriptors of this process that are TCP connections to its own port, with inodes and other ends."""
    for name in os.listdir("/dev/fd"):
        end = _other_end(int(name), port)
        if end is None:
            continue
        try:
            inode = os.fstat(int(name)).st_ino
        except OSError:
            continue  # it has just ended
        yield int(name), inode, end


def _other_end(descriptor: int, port: int) -> _End | None:
    """Return the other end; None if the descriptor is not such a connection or no longer exists."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.getsockname()[1] != port:
            return None
        return _end(*found.getpeername()[:2])
    except OSError:
        return None  # it listens, or has just ended
    finally:
        found.detach()


def _end_of(peer: str) -> _End:
    """Return the end in gRPC's notation: ipv4:10.0.0.1:5000, ipv6:%5B::1%5D:5000."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _end(host.strip("[]"), int(port) if port.isdigit() else 0)


def _end(host: str, port: int) -> _End:
    host = host.partition("%")[0]
    return _End(host.removeprefix("::ffff:") if "." in host else host, port)
