"""Limit the workers of unproven clients: clients that have sent only a hello, and may never read.

The kernel buffers the welcome for the client, so only the first `init` proves that the client has read it. Until then
its worker is unproven. Without a crowd that has no effect. In a crowd:

- `FREE` places are taken at once, further places in turn, one every `TURN_SECONDS`. So a crowd costs two or three
  processes a second, however fast it reconnects.
- When `MORE` places are taken as well, the oldest worker of the network with the most unproven workers makes room,
  once it has had `UNPROVEN_SECONDS`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from relaax.server.strikes import network_of

FREE, MORE = 16, 16
UNPROVEN_SECONDS = 2.0
TURN_SECONDS = 0.4


class UnprovenClients:
    """The unproven workers, by process id. `clock` gives seconds."""

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
