"""Admission: whether there is room for another worker, which client is next, and refusals that cost no process."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from relaax.metrics.system import available_memory
from relaax.rlx import HANDSHAKE_FRAME_BYTES, Error, ErrorCode, ProtocolError, ServerConnection
from relaax.rlx.wire.framing import HEADER_BYTES
from relaax.server.rlx_server.listening.pending_connections import PendingConnection, has_ended
from relaax.server.rlx_server.worker_reports import NO_ROOM_RETRY_SECONDS
from relaax.server.security.strikes import SECONDS, network_of

MEGABYTE = 2**20
SAMPLE_SECONDS = 5.0
SAMPLED_WORKERS = 8
STALE_SECONDS = 5.0
"""A client that has waited this long and has closed its sending side is assumed to have left."""
NEW_SECONDS = 5.0
"""A client that has waited less is new. In a crowd, new clients come first, in order; of the others, the newest."""
FREE, MORE = 16, 16
UNPROVEN_SECONDS = 2.0
TURN_SECONDS = 0.4
TURNED_AWAY = ServerConnection().send(
    Error(ErrorCode.OVERLOADED, "too many handshakes from this address have failed: wait a minute", True, SECONDS)
)


class Need(NamedTuple):
    """The memory that a worker needs, assumed until workers can be measured."""

    bytes: float
    seconds: float
    """Time from its start until it uses that much; until then, room is reserved for it."""


# Measured for the Atari network. A forked worker shares the imported modules; a spawned one imports them again.
FORKED = Need(150 * MEGABYTE, 5.0)
SPAWNED = Need(500 * MEGABYTE, 15.0)


class Admission:
    """Decide whether there is room for another worker. Swap does not count as memory."""

    def __init__(self, max_workers: int, reserve_megabytes: float, need: Need = FORKED) -> None:
        self._max_workers = max_workers
        self._reserve = reserve_megabytes * MEGABYTE
        self._need = need
        self._worker_bytes = float(need.bytes)
        self._sampled_at = 0.0
        self._seen_at: dict[int, float] = {}
        self.refused = {"max_workers": 0, "memory": 0}
        """The number of refusals by reason."""

    def refusal(self, workers: Collection[int], counts: bool = True) -> str | None:
        """Return why there is no room beside the worker processes `workers`, in one sentence; None if there is room.

        `counts`: whether to count the refusal.
        """
        if len(workers) >= self._max_workers:
            self.refused["max_workers"] += counts
            return f"this server serves {self._max_workers} connections and has no room for another"
        self._sample(workers)
        growing = self._growing(workers)
        available = available_memory()
        if available - self._worker_bytes * (1 + growing) < self._reserve:
            self.refused["memory"] += counts
            return (
                f"this server has {available / MEGABYTE:.0f} MB of memory left, a worker needs "
                f"{self._worker_bytes / MEGABYTE:.0f} MB, {growing} have just started, and "
                f"{self._reserve / MEGABYTE:.0f} MB stay reserved"
            )
        return None

    def free_places(self, workers: Collection[int]) -> int:
        """Return how many more workers there is room for beside the worker processes `workers`."""
        self._sample(workers)
        spare = available_memory() - self._reserve - self._worker_bytes * self._growing(workers)
        return max(0, min(self._max_workers - len(workers), int(spare // self._worker_bytes)))

    def _growing(self, workers: Collection[int]) -> int:
        now = time.monotonic()
        self._seen_at = {pid: self._seen_at.get(pid, now) for pid in workers}
        return sum(now - seen < self._need.seconds for seen in self._seen_at.values())

    def _sample(self, workers: Collection[int]) -> None:
        """Measure the unique set size of some workers, at most every `SAMPLE_SECONDS`."""
        now = time.monotonic()
        if not workers or now - self._sampled_at < SAMPLE_SECONDS:
            return
        self._sampled_at = now
        sizes = []
        for pid in list(workers)[:SAMPLED_WORKERS]:
            with contextlib.suppress(psutil.Error):  # it may have just ended
                sizes.append(psutil.Process(pid).memory_full_info().uss)
        if sizes:
            # A worker that has just started is smaller than it will be.
            self._worker_bytes = max(sum(sizes) / len(sizes), self._need.bytes / 2)


@dataclass(slots=True)
class _Waiting:
    since: float
    layered: bool
    network: str = ""


class AdmissionQueue:
    """Connections whose hello has arrived and that wait for a worker. `clock` gives seconds.

    They are served in order of arrival; in a crowd, by the network with the fewest unproven clients, new ones first: in
    pure order of arrival, nobody would be served in time behind a crowd that keeps returning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[socket.socket, _Waiting] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._waiting)

    def add(self, sock: socket.socket, arrival: PendingConnection = PendingConnection.WHOLE) -> None:
        """Add a connection whose whole hello has arrived, or the beginning of a layer that will hold it (LAYERED)."""
        entry = self._waiting[sock] = _Waiting(self._clock(), arrival is PendingConnection.LAYERED)
        with contextlib.suppress(OSError):  # it has disconnected, which its worker will notice
            entry.network = network_of(sock.getpeername()[0])

    def next(self, crowd: Mapping[str, int], layered: bool = True) -> socket.socket | None:
        """Return the connection to serve now; None if none waits.

        `crowd`: the number of unproven clients by network; empty if there is no crowd. `layered`: whether
        connections with a layer, such as TLS or WebSocket, may be served.
        """
        while waiting := [sock for sock, entry in self._waiting.items() if layered or not entry.layered]:
            sock = self._next_in_crowd(waiting, crowd) if crowd else waiting[0]
            if self._clock() - self._waiting[sock].since < STALE_SECONDS or not has_ended(sock):
                return sock
            self.remove(sock)
            sock.close()
        return None

    def _next_in_crowd(self, waiting: Iterable[socket.socket], crowd: Mapping[str, int]) -> socket.socket:
        now = self._clock()

        def turn(sock: socket.socket) -> tuple[int, bool, float]:
            entry = self._waiting[sock]
            new = now - entry.since <= NEW_SECONDS
            return crowd.get(entry.network, 0), not new, entry.since if new else -entry.since

        return min(waiting, key=turn)

    def remove(self, sock: socket.socket) -> PendingConnection:
        """Remove a connection, which is the caller's from now on, and return what of it has arrived."""
        return PendingConnection.LAYERED if self._waiting.pop(sock).layered else PendingConnection.WHOLE

    def drop_oldest(self) -> bool:
        """Close the oldest connection and return whether there was one."""
        for sock in self._waiting:
            self.remove(sock)
            sock.close()
            return True
        return False


class UnprovenClients:
    """The workers, by process id, of clients that have sent only a hello, and may never read. `clock` gives seconds.

    The kernel buffers the welcome for the client, so only the first `init` proves that the client has read it. Without
    a crowd that has no effect. In a crowd:

    - `FREE` places are taken at once, further places in turn, one every `TURN_SECONDS`. So a crowd costs two or three
      processes a second, however fast it reconnects.
    - When `MORE` places are taken as well, the oldest worker of the network with the most unproven workers makes room,
      once it has had `UNPROVEN_SECONDS`.
    """

    def __init__(self, free: int = FREE, clock: Callable[[], float] = time.monotonic) -> None:
        """`free`: the number of places that are taken at once."""
        self._free = free
        self._clock = clock
        self._coming: dict[int, float] = {}  # pid -> since when; preparing the welcome
        self._greeted: dict[int, float] = {}  # pid -> since when; oldest first
        self._network_of: dict[int, str] = {}
        self._next_turn = -math.inf

    def __contains__(self, pid: object) -> bool:
        return pid in self._network_of

    def __len__(self) -> int:
        """Return the number of workers that have welcomed their client and received no init."""
        return len(self._greeted)

    def admit(self, pid: int, host: str) -> None:
        """Add a worker that has admitted its client at `host` and prepares its welcome."""
        self._coming[pid] = self._clock()
        self._network_of[pid] = network_of(host)

    def greet(self, pid: int) -> None:
        """Record that a worker has sent its welcome."""
        if self._coming.pop(pid, None) is not None:
            self._greeted[pid] = self._clock()

    def leave(self, pid: int) -> None:
        """Remove a worker whose client has sent init, or that has ended."""
        self._coming.pop(pid, None)
        self._greeted.pop(pid, None)
        self._network_of.pop(pid, None)

    def crowd(self, handshakes: int) -> Counter[str]:
        """Return the number of unproven clients by network if they and `handshakes` more take all free places.

        Otherwise there is no crowd, and the counter is empty.
        """
        return Counter(self._network_of.values()) if self._taken(handshakes) >= self._free else Counter()

    def wait(self, handshakes: int) -> float:
        """Return the seconds until another worker may be started."""
        taken, now = self._taken(handshakes), self._clock()
        if taken < self._free:
            return 0.0
        turn = max(0.0, self._next_turn - now)
        return turn if taken < self._free + MORE else max(turn, self._ripe(now))

    def take(self, handshakes: int) -> int | None:
        """Take a place for another worker once `wait` is 0. Returns the worker that must make room for it, if any."""
        taken = self._taken(handshakes)
        if taken >= self._free:
            self._next_turn = self._clock() + TURN_SECONDS
        return self._last_in_turn() if taken >= self._free + MORE else None

    def loser(self) -> int | None:
        """Return the worker that must make room for a client, if one has had its time."""
        now = self._clock()
        if self._next_turn > now or self._ripe(now) > 0:
            return None
        self._next_turn = now + TURN_SECONDS
        return self._last_in_turn()

    def _taken(self, handshakes: int) -> int:
        """Count the places taken. A worker slow to welcome waits for the parameter server and needs no place."""
        now = self._clock()
        coming = sum(now - since < UNPROVEN_SECONDS for since in self._coming.values())
        return len(self._greeted) + coming + handshakes

    def _ripe(self, now: float) -> float:
        """Return the seconds until the last in turn has had its time; infinity if there is none."""
        return max(0.0, self._greeted[self._last_in_turn()] + UNPROVEN_SECONDS - now) if self._greeted else math.inf

    def _last_in_turn(self) -> int:
        """Return the oldest worker of the network with the most."""
        here = Counter(self._network_of[pid] for pid in self._greeted)
        most = max(here.values())
        return next(pid for pid in self._greeted if here[self._network_of[pid]] == most)


def turn_away(sock: socket.socket, tls: bool) -> None:
    """Refuse a connection that may have sent nothing yet, and close it. With `tls`, without a word.

    Like `say_no_room` it costs no process and never waits; over TLS a refusal would need a handshake first.
    """
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        if not tls:
            sock.send(TURNED_AWAY)
        sock.shutdown(socket.SHUT_WR)


def say_no_room(sock: socket.socket, why: str) -> None:
    """Refuse a connection whose whole hello has arrived, in the client's codec, and close it.

    The hello is not decoded, and its token not looked at: there is room for nobody.
    """
    with sock, contextlib.suppress(OSError, ProtocolError):
        sock.setblocking(False)
        hello = sock.recv(HEADER_BYTES + HANDSHAKE_FRAME_BYTES)  # a socket closed with unread bytes loses what it sent
        connection = ServerConnection()
        connection.receive_data(hello[: HEADER_BYTES + 1])  # enough to learn the codec
        connection.next_event()
        sock.send(connection.send(Error(ErrorCode.OVERLOADED, why, True, NO_ROOM_RETRY_SECONDS)))
        sock.shutdown(socket.SHUT_WR)
