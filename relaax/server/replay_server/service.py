"""The replay service: tables by name, created on registration within a memory limit."""

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
from relaax.server.ports.wait_slots import WaitSlots
from relaax.server.replay_server.served_table import (
    InsertAnswer,
    ServedTable,
    WriterInsert,
    value_errors_as_invalid_request,
)
from relaax.server.replay_server.table_statistics import TableStatistics
from relaax.server.service_errors import MemoryExhausted, NotAllowedNow

GIGABYTE = 1e9
SHARED_PART = 1 / 4
"""Bytes that local callers may share with a server, per byte of its tables."""
LEAST_SHARED = MAX_MESSAGE
"""Minimum number of these bytes, so that the longest sample fits."""


def table_bytes(settings: ReplayServerSection, available: float) -> float:
    """Return the memory limit of a shard's tables in bytes.

    Without the key `memory`, all shards together get half of the `available` bytes: they may start on one host at the
    same time.
    """
    return available / (2 * max(settings.shards, 1)) if settings.memory is None else settings.memory * GIGABYTE


def shared_bytes(tables: float) -> float:
    """Return the bytes that local callers may share with a server whose tables may use `tables` bytes."""
    return max(tables * SHARED_PART, LEAST_SHARED)


_log = logging.getLogger(__name__)

MAX_TABLES = 1024
"""Maximum number of tables of a shard, including sessions' tables."""
SILENT_SESSION_SECONDS = 60.0
"""Seconds without a request after which a session's table is dropped if another session needs its memory."""


class ReplayService:
    """The tables of shard `shard` of `shards`, which may use up to `memory` bytes. Thread-safe.

    A session's table is dropped after `session_timeout` seconds without a request. Writers are removed after the same
    time without an insert. If another session needs the memory, a session's table is dropped earlier: if the session
    has ended or is silent, or if its client uses more memory than the other client would. `clock` returns seconds.
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
        self.checkpoint_location = ""
        """Location of the checkpoint from which tables were restored."""
        self.shard = shard
        self.shards = shards
        self._session_timeout = session_timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], ServedTable] = {}  # by (name, session)
        self._of_incarnation: dict[str, ServedTable] = {}
        self._dropped: dict[str, TableStatistics] = {}  # statistics of dropped tables, by name
        self._inserts, self._samples = WaitSlots(), WaitSlots()
        self._lost_updates = 0

    @property
    def lost_updates(self) -> int:
        """Number of priority updates for dropped tables."""
        return self._lost_updates

    def register(self, declaration: TableDeclaration, session: str = "", client: str = "") -> ServedTable:
        """Return a table, and create it if necessary. `client`: the name of the session's client, if it has one.

        Raises NotAllowedNow if the table has another declaration, MemoryExhausted if it does not fit, and
        InvalidRequest.
        """
        with value_errors_as_invalid_request():
            for text, what in ((session, "a session"), (client, "a client")):
                if text:
                    check_name(text, what, MAX_NAME)
        name = declaration.spec.name
        with self._lock:
            table = self._tables.get((name, session))
            owner = f"client {client}" if client and session else session
            if table is None:
                table = self._create(declaration, session, owner)
            table.claim(declaration, owner)
        difference = declaration_difference(table.declaration, declaration)
        if difference is not None:
            way_out = "use the same configuration, or restart the replay servers to change it"
            if table.earlier_incarnations:
                way_out = (
                    f"its items are in checkpoints at {self.checkpoint_location}: use the configuration that it was "
                    "created with, or another checkpoint location; to start with an empty memory, stop the replay "
                    "server and remove these checkpoints"
                )
            raise NotAllowedNow(f"table {name!r} has another declaration: {difference}; {way_out}")
        table.last_request, table.has_ended = self._clock(), False
        return table

    def tables(self) -> list[ServedTable]:
        """Return all tables."""
        with self._lock:
            return list(self._tables.values())

    def create_restored(self, declaration: TableDeclaration, session: str, checkpoint_location: str) -> ServedTable:
        """Create a table to restore, before the service is available. Raises MemoryExhausted if it does not fit."""
        self.checkpoint_location = checkpoint_location
        with self._lock:
            return self._create(declaration, session, session)

    def clear(self) -> None:
        """Remove all tables, as the checkpoint that is being restored is damaged."""
        with self._lock:
            self._tables.clear()
            self._of_incarnation.clear()

    def find(self, incarnation: str) -> ServedTable | None:
        """Return the table of this incarnation; None if it was dropped."""
        table = self._of_incarnation.get(incarnation)
        if table is not None:
            table.last_request = self._clock()
        return table

    def insert(self, table: ServedTable, insert: WriterInsert) -> InsertAnswer:
        """Insert into a table (see `ServedTable.insert`)."""
        return table.insert(insert, self._inserts)

    def sample(
        self, table: ServedTable, count: int, wait: float, out: Mapping[str, npt.NDArray[Any]] | None = None
    ) -> Sample | None:
        """Draw from a table (see `ServedTable.sample`)."""
        return table.sample(count, wait, self._samples, out)

    def update_priorities(
        self, incarnation: str, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]
    ) -> int:
        """Update priorities; return how many were applied, 0 if the table was dropped. Raises InvalidRequest."""
        table = self.find(incarnation)
        if table is None:
            with self._lock:
                self._lost_updates += len(keys)
            return 0
        return table.update_priorities(keys, priorities)

    def statistics(self) -> Mapping[str, TableStatistics]:
        """Return the statistics of present and dropped tables, by name."""
        with self._lock:
            sums = dict(self._dropped)
            for (name, _), table in self._tables.items():
                sums[name] = sums.get(name, TableStatistics()) + table.statistics
            return sums

    def sweep(self) -> None:
        """Drop sessions' tables without recent requests, and remove silent writers. Called about once a second."""
        now = self._clock()
        with self._lock:
            dropped = [
                table
                for table in self._tables.values()
                if table.session and now - table.last_request >= self._session_timeout
            ]
            for table in dropped:
                self._drop(table, f"no request for {self._session_timeout:g} s, the session timeout")
            tables = list(self._tables.values())
        for table in tables:
            table.remove_silent_writers(self._session_timeout)

    def _create(self, declaration: TableDeclaration, session: str, owner: str) -> ServedTable:
        """Create a table. Called with the lock held."""
        name = declaration.spec.name
        needed = declaration.spec_of_shard(self.shards).bytes()
        self._evict_tables(needed, owner)
        if len(self._tables) >= MAX_TABLES:
            raise MemoryExhausted(
                f"the replay server already has {MAX_TABLES} tables, the maximum; run fewer sessions at a time"
            )
        self._check_memory(name, needed)
        table = ServedTable(declaration, self.shards, session, self._clock, owner)
        self._put(table)
        owned = f" of session {session}" if session else ""
        _log.info(
            "created replay table %r%s: capacity %d items, %s", name, owned, table.spec.capacity, _gigabytes(needed)
        )
        return table

    def _put(self, table: ServedTable) -> None:
        self._tables[table.spec.name, table.session] = table
        self._of_incarnation[table.incarnation] = table

    def _drop(self, table: ServedTable, why: str) -> None:
        """Drop a session's table. Called with the lock held."""
        name, session = table.spec.name, table.session
        del self._tables[name, session], self._of_incarnation[table.incarnation]
        self._dropped[name] = self._dropped.get(name, TableStatistics()) + table.statistics.of_dropped()
        _log.info("dropped replay table %r of session %s, %d items: %s", name, session, table.size, why)

    def _evict_tables(self, needed: int, owner: str) -> None:
        """Drop sessions' tables so that a new one of `needed` bytes fits; drop none if that is not possible.

        The order is: restored tables without a request since the server's start, tables of ended sessions, and tables
        without a request for `SILENT_SESSION_SECONDS`, each with the least recent first. After these, tables of the
        client with most memory are dropped, if it uses more than the new session's `owner` will use.
        """
        dropped: dict[ServedTable, str] = {}  # tables to drop, with the reasons
        sessions = sorted(
            (table for table in self._tables.values() if table.session), key=lambda table: table.last_request
        )
        silent = self._clock() - SILENT_SESSION_SECONDS
        unused = {
            "no request since the server's start": [table for table in sessions if table.is_unclaimed],
            "its session has ended": [table for table in sessions if table.has_ended],
            f"no request for {SILENT_SESSION_SECONDS:g} s": [
                table for table in sessions if table.last_request <= silent
            ],
        }
        for why, tables in unused.items():
            for table in tables:
                if table in sessions and not self._has_memory(needed, dropped):
                    sessions.remove(table)
                    dropped[table] = f"{why}, and another session needs its memory"
        while (
            owner
            and not self._has_memory(needed, dropped)
            and (one := _table_of_largest_owner(sessions, owner, needed))
        ):
            sessions.remove(one)
            dropped[one] = f"its client ({one.owner}) uses most memory, and another client needs it"
        if self._has_memory(needed, dropped):
            for table, why in dropped.items():
                self._drop(table, why)

    def _has_memory(self, needed: int, without: Collection[ServedTable]) -> bool:
        taken = self._used_bytes() - sum(table.bytes for table in without)
        return taken + needed <= self.memory and len(self._tables) - len(without) < MAX_TABLES

    def _used_bytes(self) -> int:
        return sum(table.bytes for table in self._tables.values())

    def _check_memory(self, name: str, needed: int) -> None:
        """Raise MemoryExhausted unless `needed` bytes are left."""
        taken = self._used_bytes()
        if taken + needed > self.memory:
            others = f", other tables need {_gigabytes(taken)}" if taken else ""
            raise MemoryExhausted(
                f"table {name!r} needs {_gigabytes(needed)} on this shard{others}, and the limit is "
                f"{_gigabytes(self.memory)}: increase relaax-replay-server.memory, start more shards, or declare a "
                "smaller capacity"
            )


def _table_of_largest_owner(tables: Sequence[ServedTable], owner: str, needed: int) -> ServedTable | None:
    """Return the first table of the client that uses most memory; None if `owner` would use as much."""
    shares = Counter[str]()
    for table in tables:
        shares[table.owner] += table.bytes
    largest, taken = max(shares.items(), key=lambda share: share[1], default=(owner, 0))
    if largest == owner or taken <= shares[owner] + needed:
        return None
    return next(table for table in tables if table.owner == largest)


def _gigabytes(count: int) -> str:
    """Return a number of bytes in GB, with three significant digits."""
    gigabytes = count / GIGABYTE
    digits = 3 if gigabytes <= 0 else max(0, 2 - math.floor(math.log10(gigabytes)))
    return f"{gigabytes:.{digits}f} GB"
