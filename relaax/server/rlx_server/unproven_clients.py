"""Limit the workers whose clients have not yet proved that they read: all they have sent is a hello.

The kernel takes the welcome into the client's buffer, so only the first `init` shows that somebody has read it. Until
then a worker is unproven. Without a crowd that costs it nothing. With one:

- `FREE` places are taken at once, further ones in turn: one every `TURN_SECONDS`. So a crowd costs two or three
  processes a second, however eagerly it comes back.
- When `MORE` of those are taken as well, the worker that has waited longest makes room, of the network address that has
  most of them. It has had `UNPROVEN_SECONDS` by then.
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
    """Who is unproven, by process id. `clock` gives seconds."""

    def __init__(self, free: int = FREE, clock: Callable[[], float] = time.monotonic) -> None:
        """`free`: as many places are taken at once."""
        self._free = free
        self._clock = clock
        self._coming: dict[int, float] = {}  # pid -> since when; they prepare their welcome
        self._greeted: dict[int, float] = {}  # pid -> since when; the oldest comes first
        self._network_of: dict[int, str] = {}
        self._next_turn = -math.inf

    def __contains__(self, pid: object) -> bool:
        return pid in self._network_of

    def __len__(self) -> int:
        """How many have welcomed their client and heard no init."""
        return len(self._greeted)

    def admit(self, pid: int, host: str) -> None:
        """A worker has let its client at `host` in, and prepares its welcome."""
        self._coming[pid] = self._clock()
        self._network_of[pid] = network_of(host)

    def greet(self, pid: int) -> None:
        """It has said its welcome."""
        if self._coming.pop(pid, None) is not None:
            self._greeted[pid] = self._clock()

    def leave(self, pid: int) -> None:
        """Its client has said init, or it has ended."""
        self._coming.pop(pid, None)
        self._greeted.pop(pid, None)
        self._network_of.pop(pid, None)

    def crowd(self, handshakes: int) -> Counter[str]:
        """How many clients of each network are unproven, where they and `handshakes` more take all free places.

        Else nothing, which is false: there is no crowd.
        """
        return Counter(self._network_of.values()) if self._taken(handshakes) >= self._free else Counter()

    def wait(self, handshakes: int) -> float:
        """Seconds until one more worker may be started."""
        taken, now = self._taken(handshakes), self._clock()
        if taken < self._free:
            return 0.0
        turn = max(0.0, self._next_turn - now)
        return turn if taken < self._free + MORE else max(turn, self._ripe(now))

    def take(self, handshakes: int) -> int | None:
        """One more worker is started: no more `wait`. Returns the one that is to make room for it, if need be."""
        taken = self._taken(handshakes)
        if taken >= self._free:
            self._next_turn = self._clock() + TURN_SECONDS
        return self._last_in_turn() if taken >= self._free + MORE else None

    def loser(self) -> int | None:
        """The worker that has had its time, and makes room for a client that there is no other room for."""
        now = self._clock()
        if self._next_turn > now or self._ripe(now) > 0:
            return None
        self._next_turn = now + TURN_SECONDS
        return self._last_in_turn()

    def _taken(self, handshakes: int) -> int:
        """A worker that takes long to prepare its welcome waits for the parameter server, and needs no place."""
        now = self._clock()
        coming = sum(now - since < UNPROVEN_SECONDS for since in self._coming.values())
        return len(self._greeted) + coming + handshakes

    def _ripe(self, now: float) -> float:
        """Seconds until the last in turn has had its time; infinity where there is none."""
        return max(0.0, self._greeted[self._last_in_turn()] + UNPROVEN_SECONDS - now) if self._greeted else math.inf

    def _last_in_turn(self) -> int:
        """The oldest of those whose network has most."""
        here = Counter(self._network_of[pid] for pid in self._greeted)
        most = max(here.values())
        return next(pid for pid in self._greeted if here[self._network_of[pid]] == most)
