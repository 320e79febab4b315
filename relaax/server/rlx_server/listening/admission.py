"""Admission: room for another worker, the order of waiting clients, and refusals that need no worker."""

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
from relaax.server.rlx_server.listening.pending_connections import PendingState, has_ended
from relaax.server.rlx_server.worker_reports import NO_ROOM_RETRY_SECONDS
from relaax.server.security.strikes import SECONDS, network_of

MEGABYTE = 2**20
SAMPLE_SECONDS = 5.0
SAMPLED_WORKERS = 8
STALE_SECONDS = 5.0
"""A client that has waited this long and has closed its sending side is assumed to have disconnected."""
NEW_SECONDS = 5.0
"""A client is new until it has waited this long.

In a crowd, new clients are served first, in order of arrival. Then the others are served, the latest arrival first.
"""
FREE_PLACES, EXTRA_PLACES = 16, 16
UNPROVEN_SECONDS = 2.0
TURN_SECONDS = 0.4
BLOCKED_ERROR = ServerConnection().send(
    Error(ErrorCode.OVERLOADED, "too many handshakes from this address have failed: retry in a minute", True, SECONDS)
)


class Need(NamedTuple):
    """The assumed memory of a worker, until workers can be measured."""

    bytes: float
    seconds: float
    """Time until a new worker uses this memory. Until then the memory is reserved for it."""


# Measured for the Atari network. A forked worker shares the imported modules; a spawned one imports them again.
FORKED = Need(150 * MEGABYTE, 5.0)
SPAWNED = Need(500 * MEGABYTE, 15.0)


class Admission:
    """The decision whether there is room for another worker. Swap does not count as memory."""

    def __init__(self, max_workers: int, reserve_megabytes: float, need: Need = FORKED) -> None:
        self._max_workers = max_workers
        self._reserve = reserve_megabytes * MEGABYTE
        self._need = need
        self._worker_bytes = float(need.bytes)
        self._sampled_at = 0.0
        self._seen_at: dict[int, float] = {}
        self.refused = {"max_workers": 0, "memory": 0}
        """Number of refusals, by reason."""

    def refusal(self, workers: Collection[int], counts: bool = True) -> str | None:
        """Return why there is no room for a worker besides `workers` (process ids); None if there is room.

        `counts`: whether to count a refusal.
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
                f"{self._worker_bytes / MEGABYTE:.0f} MB, {growing} workers have just started, and "
                f"{self._reserve / MEGABYTE:.0f} MB stay reserved"
            )
        return None

    def free_places(self, workers: Collection[int]) -> int:
        """Return the number of workers that can be added to `workers` (process ids)."""
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
            with contextlib.suppress(psutil.Error):  # it may have ended
                sizes.append(psutil.Process(pid).memory_full_info().uss)
        if sizes:
            # A new worker has not reached its full size.
            self._worker_bytes = max(sum(sizes) / len(sizes), self._need.bytes / 2)


@dataclass(slots=True)
class _Waiting:
    since: float
    layered: bool
    network: str = ""


class AdmissionQueue:
    """Connections that have sent a whole hello and wait for a worker. `clock` gives seconds.

    Without a crowd they are served in order of arrival. In a crowd (many unproven clients), the network with the fewest
    unproven clients is served first, and in each network new connections first. If a crowd were served in order of
    arrival, clients that reconnect repeatedly would delay all others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[socket.socket, _Waiting] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._waiting)

    def add(self, sock: socket.socket, state: PendingState = PendingState.HELLO) -> None:
        """Add a connection that has sent its whole hello (HELLO), or the start of TLS or WebSocket (LAYERED)."""
        entry = self._waiting[sock] = _Waiting(self._clock(), state is PendingState.LAYERED)
        with contextlib.suppress(OSError):  # it has disconnected: its worker will detect that
            entry.network = network_of(sock.getpeername()[0])

    def next(self, crowd: Mapping[str, int], layered: bool = True) -> socket.socket | None:
        """Return the connection to serve now, or None.

        `crowd`: number of unproven clients by network; empty if there is no crowd. `layered`: whether connections over
        TLS or WebSocket may be served.
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

    def remove(self, sock: socket.socket) -> PendingState:
        """Remove a connection without closing it, and return its state: HELLO or LAYERED."""
        return PendingState.LAYERED if self._waiting.pop(sock).layered else PendingState.HELLO

    def drop_oldest(self) -> bool:
        """Close the oldest connection. Return False if there is none."""
        for sock in self._waiting:
            self.remove(sock)
            sock.close()
            return True
        return False


class UnprovenClients:
    """The workers, by process id, whose clients have sent only a hello (unproven clients). `clock` gives seconds.

    The kernel buffers the welcome, so only the first `init` proves that the client has read it. If fewer than
    `FREE_PLACES` workers are unproven, this class has no effect. Otherwise there is a crowd:

    - The first `FREE_PLACES` places can be taken immediately, and one more every `TURN_SECONDS`. So a crowd starts two
      or three processes a second, however often its clients reconnect.
    - If `EXTRA_PLACES` more places are taken, the oldest worker of the network with the most unproven workers is
      evicted after `UNPROVEN_SECONDS`.
    """

    def __init__(self, free: int = FREE_PLACES, clock: Callable[[], float] = time.monotonic) -> None:
        """`free`: number of places that can be taken immediately."""
        self._free = free
        self._clock = clock
        self._admitted: dict[int, float] = {}  # pid -> start time; preparing the welcome
        self._welcomed: dict[int, float] = {}  # pid -> time of the welcome; oldest first
        self._network_of: dict[int, str] = {}
        self._next_turn = -math.inf

    def __contains__(self, pid: object) -> bool:
        return pid in self._network_of

    def __len__(self) -> int:
        """Return the number of workers that have sent their welcome and received no init."""
        return len(self._welcomed)

    def admit(self, pid: int, host: str) -> None:
        """Add a worker that has admitted its client at address `host` and prepares the welcome."""
        self._admitted[pid] = self._clock()
        self._network_of[pid] = network_of(host)

    def record_welcome(self, pid: int) -> None:
        """Record that a worker has sent its welcome."""
        if self._admitted.pop(pid, None) is not None:
            self._welcomed[pid] = self._clock()

    def remove(self, pid: int) -> None:
        """Remove a worker whose client has sent init, or that has ended."""
        self._admitted.pop(pid, None)
        self._welcomed.pop(pid, None)
        self._network_of.pop(pid, None)

    def crowd(self, handshakes: int) -> Counter[str]:
        """Return the number of unproven clients by network; empty while places are free.

        `handshakes`: number of workers with undecided clients, which take places too.
        """
        return Counter(self._network_of.values()) if self._taken(handshakes) >= self._free else Counter()

    def delay(self, handshakes: int) -> float:
        """Return the seconds until another worker may be started."""
        taken, now = self._taken(handshakes), self._clock()
        if taken < self._free:
            return 0.0
        turn = max(0.0, self._next_turn - now)
        return turn if taken < self._free + EXTRA_PLACES else max(turn, self._eviction_delay(now))

    def reserve(self, handshakes: int) -> int | None:
        """Reserve a place for another worker once `delay` is 0. Return the worker to evict for it, if any."""
        taken = self._taken(handshakes)
        if taken >= self._free:
            self._next_turn = self._clock() + TURN_SECONDS
        return self._eviction_candidate() if taken >= self._free + EXTRA_PLACES else None

    def choose_eviction(self) -> int | None:
        """Return the worker to evict for a new client, and start a turn.

        Return None before the next turn, and if no worker has exceeded UNPROVEN_SECONDS.
        """
        now = self._clock()
        if self._next_turn > now or self._eviction_delay(now) > 0:
            return None
        self._next_turn = now + TURN_SECONDS
        return self._eviction_candidate()

    def _taken(self, handshakes: int) -> int:
        """Count the places taken.

        A worker that has sent no welcome after UNPROVEN_SECONDS waits for the parameter server and needs no place.
        """
        now = self._clock()
        admitted = sum(now - since < UNPROVEN_SECONDS for since in self._admitted.values())
        return len(self._welcomed) + admitted + handshakes

    def _eviction_delay(self, now: float) -> float:
        """Return the seconds until a worker may be evicted; infinity if no worker has sent its welcome."""
        return (
            max(0.0, self._welcomed[self._eviction_candidate()] + UNPROVEN_SECONDS - now)
            if self._welcomed
            else math.inf
        )

    def _eviction_candidate(self) -> int:
        """Return the oldest worker of the network with the most unproven workers."""
        here = Counter(self._network_of[pid] for pid in self._welcomed)
        most = max(here.values())
        return next(pid for pid in self._welcomed if here[self._network_of[pid]] == most)


def refuse_blocked_address(sock: socket.socket, tls: bool) -> None:
    """Refuse a connection that may not have sent any bytes yet, and close it. With `tls`, no error is sent."""
    with sock, contextlib.suppress(OSError):
        sock.setblocking(False)
        if not tls:
            sock.send(BLOCKED_ERROR)
        sock.shutdown(socket.SHUT_WR)


def refuse_overloaded(sock: socket.socket, why: str) -> None:
    """Refuse a connection whose whole hello has arrived, and close it. The error is in the client's codec.

    The hello is not decoded and its token is not checked.
    """
    with sock, contextlib.suppress(OSError, ProtocolError):
        sock.setblocking(False)
        hello = sock.recv(
            HEADER_BYTES + HANDSHAKE_FRAME_BYTES
        )  # closing a socket with unread bytes discards what it sent
        connection = ServerConnection()
        connection.receive_data(hello[: HEADER_BYTES + 1])  # these bytes determine the codec
        connection.next_event()
        sock.send(connection.send(Error(ErrorCode.OVERLOADED, why, True, NO_ROOM_RETRY_SECONDS)))
        sock.shutdown(socket.SHUT_WR)
