"""The replay service: tables by name, made when they are asked for, within a bound of memory."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.configuration import ReplayServerSection
from relaax.replay.spec import TableDeclaration
from relaax.replay.table.table import Sample
from relaax.replay.wire import MAX_MESSAGE, MAX_NAME, check_name, declaration_difference
from relaax.server.replay_server.held_table import (
    HeldTable,
    InsertAnswer,
    WaitingRoom,
    WriterInsert,
    value_errors_refused,
)
from relaax.server.replay_server.tallies import TableTallies
from relaax.server.service_errors import MemoryExhausted, NotAllowedNow

GIGABYTE = 1e9
SHARED_PART = 1 / 4
"""Bytes that callers of this host may share with a server, for each byte of its tables."""
LEAST_SHARED = MAX_MESSAGE
"""Bytes that they may share in any case: the longest sample."""


def table_bytes(settings: ReplayServerSection, available: float) -> float:
    """Return the bytes that tables of a shard may take, of so many that are available.

    If no key says how many, half of those for all shards together: they may be on one host, and start at the same time.
    """
    return available / (2 * max(settings.shards, 1)) if settings.memory is None else settings.memory * GIGABYTE


def shared_bytes(tables: float) -> float:
    """Return the bytes that callers of this host may share with a server whose tables may take `tables` bytes."""
    return max(tables * SHARED_PART, LEAST_SHARED)


_log = logging.getLogger(__name__)

MAX_TABLES = 1024
"""Tables of a shard, those of sessions among them."""
SILENT_SESSION_SECONDS = 60.0
"""Without a request for so long, a session's table is dropped if another session needs its room."""


class ReplayService:
    """Shard `shard` of `shards`. Its tables take up to `memory` bytes. Thread-safe.

    A table of a session is dropped once nobody has asked for it for `session_timeout` seconds, by which time writers
    are forgotten, too. If another session needs its room, it is dropped before: if the session has ended or is silent,
    or if its client has more than the other one would have. `clock` gives seconds.
    """

    def __init__(
        self,
        memory: int,
        shard: int = 0,
        shards: int = 1,
        session_timeout: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.memory = memory
        self.kept_in = ""
        """Where what was restored is kept."""
        self.shard = shard
        self.shards = shards
        self._session_timeout = session_timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], HeldTable] = {}  # by name and session
        self._of_incarnation: dict[str, HeldTable] = {}
        self._past: dict[str, TableTallies] = {}  # of tables that were dropped, by name
        self._inserts, self._samples = WaitingRoom(), WaitingRoom()
        self._lost_updates = 0

    @property
    def lost_updates(self) -> int:
        """Updates of priorities of tables that are not there any more."""
        return self._lost_updates

    def register(self, declaration: TableDeclaration, session: str = "", client: str = "") -> HeldTable:
        """Return a table, made if it is not there. `client`: the name of the session's client, if it has one.

        Raises NotAllowedNow if it was declared otherwise, MemoryExhausted if it does not fit, and InvalidRequest.
        """
        with value_errors_refused():
            for text, what in ((session, "a session"), (client, "a client")):
                if text:
                    check_name(text, what, MAX_NAME)
        name = declaration.spec.name
        with self._lock:
            held = self._tables.get((name, session))
            owner = f"client {client}" if client and session else session
            if held is None:
                held = self._make(declaration, session, owner)
            held.claim(declaration, owner)
        difference = declaration_difference(held.declaration, declaration)
        if difference is not None:
            way_out = "give both the same configuration, or start the replay servers again for another one"
            if held.earlier:
                way_out = (
                    f"its items are kept in {self.kept_in}: give the configuration that it was made with, or use "
                    "another checkpoint location; or, to begin with an empty memory, end the replay server and remove "
                    "what is there"
                )
            raise NotAllowedNow(f"the table {name!r} was declared otherwise: {difference}; {way_out}")
        held.heard, held.ended = self._clock(), False
        return held

    def tables(self) -> list[HeldTable]:
        """Return the tables that are there."""
        with self._lock:
            return list(self._tables.values())

    def make_for(self, declaration: TableDeclaration, session: str, kept_in: str) -> HeldTable:
        """Make a table for what `kept_in` keeps, before anybody is served. Raises MemoryExhausted if it has no room."""
        self.kept_in = kept_in
        with self._lock:
            return self._make(declaration, session, session)

    def clear(self) -> None:
        """Forget the tables: what was to be restored is damaged."""
        with self._lock:
            self._tables.clear()
            self._of_incarnation.clear()

    def find(self, incarnation: str) -> HeldTable | None:
        """Return the table that lives under this name; None if it does not any more."""
        held = self._of_incarnation.get(incarnation)
        if held is not None:
            held.heard = self._clock()
        return held

    def insert(self, held: HeldTable, insert: WriterInsert) -> InsertAnswer:
        """Insert into a table; see `HeldTable.insert`."""
        return held.insert(insert, self._inserts)

    def sample(
        self, held: HeldTable, count: int, wait: float, out: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> Sample | None:
        """Draw from a table; see `HeldTable.sample`."""
        return held.sample(count, wait, self._samples, out)

    def update_priorities(
        self, incarnation: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]
    ) -> int:
        """Give items new priorities; return how many were applied: none if the table is gone. Raises InvalidRequest."""
        held = self.find(incarnation)
        if held is None:
            with self._lock:
                self._lost_updates += len(keys)
            return 0
        return held.update_priorities(keys, priorities)

    def tallies(self) -> Mapping[str, TableTallies]:
        """Return what has happened to the tables, by name."""
        with self._lock:
            sums = dict(self._past)
            for (name, _), held in self._tables.items():
                sums[name] = sums.get(name, TableTallies()) + held.tallies
            return sums

    def sweep(self) -> None:
        """Drop tables of sessions, and forget writers, that were not heard of for long. Called every second or so."""
        now = self._clock()
        with self._lock:
            dropped = [
                held for held in self._tables.values() if held.session and now - held.heard >= self._session_timeout
            ]
            for held in dropped:
                self._drop(held, f"nobody has asked for it for {self._session_timeout:g} s")
            tables = list(self._tables.values())
        for held in tables:
            held.forget_silent(self._session_timeout)

    def _make(self, declaration: TableDeclaration, session: str, owner: str) -> HeldTable:
        """Make a table. Called with the lock held."""
        name = declaration.spec.name
        needed = declaration.spec_of_shard(self.shards).bytes()
        self._make_way(needed, owner)
        if len(self._tables) >= MAX_TABLES:
            raise MemoryExhausted(f"there are {MAX_TABLES} tables already; let fewer sessions have one at a time")
        self._require_room(name, needed)
        held = HeldTable(declaration, self.shards, session, self._clock, owner)
        self._put(held)
        whose = f" of session {session}" if session else ""
        _log.info("made the table %r%s: %d items, %s", name, whose, held.spec.capacity, _gigabytes(needed))
        return held

    def _put(self, held: HeldTable) -> None:
        self._tables[held.spec.name, held.session] = held
        self._of_incarnation[held.incarnation] = held

    def _drop(self, held: HeldTable, why: str) -> None:
        """Drop a session's table. Called with the lock held."""
        name, session = held.spec.name, held.session
        del self._tables[name, session], self._of_incarnation[held.incarnation]
        self._past[name] = self._past.get(name, TableTallies()) + held.tallies.past()
        _log.info("dropped the table %r of session %s, %d items: %s", name, session, held.size, why)

    def _make_way(self, needed: int, owner: str) -> None:
        """Drop the sessions' tables whose room a new one of `needed` bytes takes; none if that is not enough.

        Restored tables without a request since the server's start come first, then tables of ended sessions, then
        those without a request for `SILENT_SESSION_SECONDS`; the least recent first. Then the client with most memory
        loses tables, if it has more than the session's `owner` will have.
        """
        dropped: dict[HeldTable, str] = {}  # and the reasons
        sessions = sorted((held for held in self._tables.values() if held.session), key=lambda held: held.heard)
        silent = self._clock() - SILENT_SESSION_SECONDS
        unused = {
            "no request since the server's start": [held for held in sessions if held.unclaimed],
            "its session has ended": [held for held in sessions if held.ended],
            f"no request for {SILENT_SESSION_SECONDS:g} s": [held for held in sessions if held.heard <= silent],
        }
        for why, tables in unused.items():
            for held in tables:
                if held in sessions and not self._has_room(needed, dropped):
                    sessions.remove(held)
                    dropped[held] = f"{why}, and another session needs its room"
        while owner and not self._has_room(needed, dropped) and (one := _of_largest_owner(sessions, owner, needed)):
            sessions.remove(one)
            dropped[one] = f"its client ({one.owner}) has most of the memory, and another client needs its room"
        if self._has_room(needed, dropped):
            for held, why in dropped.items():
                self._drop(held, why)

    def _has_room(self, needed: int, without: Collection[HeldTable]) -> bool:
        taken = self._taken() - sum(held.bytes for held in without)
        return taken + needed <= self.memory and len(self._tables) - len(without) < MAX_TABLES

    def _taken(self) -> int:
        return sum(held.bytes for held in self._tables.values())

    def _require_room(self, name: str, needed: int) -> None:
        """Raise MemoryExhausted unless so many bytes are left."""
        taken = self._taken()
        if taken + needed > self.memory:
            beside = f" beside {_gigabytes(taken)} of other tables" if taken else ""
            raise MemoryExhausted(
                f"the table {name!r} takes {_gigabytes(needed)} on this shard{beside}, and all may take "
                f"{_gigabytes(self.memory)}: give relaax-replay-server.memory more, start more shards, or declare a "
                "smaller capacity"
            )


def _of_largest_owner(tables: Sequence[HeldTable], owner: str, needed: int) -> HeldTable | None:
    """Return the first table of the client that has most; None unless that is more than `owner` has, and `needed`."""
    shares = Counter[str]()
    for held in tables:
        shares[held.owner] += held.bytes
    largest, taken = max(shares.items(), key=lambda share: share[1], default=(owner, 0))
    if largest == owner or taken <= shares[owner] + needed:
        return None
    return next(held for held in tables if held.owner == largest)


def _gigabytes(count: int) -> str:
    """Return a number of bytes in GB, with three digits that count."""
    gigabytes = count / GIGABYTE
    digits = 3 if gigabytes <= 0 else max(0, 2 - math.floor(math.log10(gigabytes)))
    return f"{gigabytes:.{digits}f} GB"
