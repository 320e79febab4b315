"""A lease that lets one of several parameter servers write to a location, with an increasing fence number."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from relaax.checkpoint.store import Conflict, NotFound, Store, StoreError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lease. `pid` is valid within `boot` and `pid_namespace`.

    `started` distinguishes processes with the same pid. A field is empty if the system does not provide it. If
    `boot` or `started` is empty, `is_dead` returns false.
    """

    holder: str
    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Holder:
        """Return a new holder for the calling process. A process may acquire several leases."""
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), _boot_id(), _pid_namespace(), pid, _process(pid)[0])

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Holder:
        """Return the holder with these fields. Raises TypeError, KeyError and ValueError."""
        texts = {field.name: str(value[field.name]) for field in fields(cls) if field.name != "pid"}
        return cls(pid=int(value["pid"]), **texts)

    def is_dead(self) -> bool:
        """Return whether the process is known to have ended: false outside of its boot and pid namespace."""
        if not self.boot or not self.started or (self.boot, self.pid_namespace) != (_boot_id(), _pid_namespace()):
            return False
        started, state = _process(self.pid)
        return started != self.started or state in ("Z", "X")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _process(pid: int) -> tuple[str, str]:
    """Return a process's start, in clock ticks since boot, and its state; empty if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # the program's name may be any bytes
    except OSError:
        return "", ""
    # The program's name, in parentheses, may contain any characters.
    words = text.rpartition(")")[2].split()
    return words[19], words[0]


KEY = "lease.json"
TTL = 15.0
"""Seconds without a renewal after which another process may take the lease over."""
_RENEWALS_PER_TTL = 3
_LOG_INTERVAL = 60.0  # seconds between log lines about the same failure


class LeaseHeld(StoreError):
    """Another process holds the lease and is alive."""


class LeaseLost(Exception):
    """Another process holds the lease now, so this one must not write. The message names the holder."""


class LeaseWaitInterrupted(Exception):
    """The process that waited for the lease was asked to end."""


@dataclass(frozen=True, slots=True)
class _LeaseRecord:
    """The content of `lease.json`. `renewed` is a counter, not a time, so that clocks are never compared."""

    fence: int
    renewed: int
    released: bool
    holder: Holder

    def encode(self) -> bytes:
        own = {"fence": self.fence, "renewed": self.renewed, "released": self.released}
        return json.dumps({**asdict(self.holder), **own}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> _LeaseRecord | None:
        """Decode a record; return None if `encode` did not write it."""
        try:
            value: dict[str, Any] = json.loads(data)
            return cls(int(value["fence"]), int(value["renewed"]), bool(value["released"]), Holder.of(value))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            return None


class Lease:
    """The right to write to `store`: acquired once, renewed by a thread, ended by `release`.

    If another process has taken the lease over, that thread calls `on_lost` once with a sentence. An unavailable store
    does not end the lease: a holder that cannot renew it cannot publish either. If no other process has taken the
    lease over when the store is available again, the holder continues.
    """

    def __init__(
        self,
        store: Store,
        on_lost: Callable[[str], None] = lambda sentence: None,
        ttl: float = TTL,
        poll: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._on_lost = on_lost
        self._ttl = ttl
        self._poll = poll
        self._clock = clock
        self._record = _LeaseRecord(0, 0, True, Holder.here())
        self._tag: str | None = None
        self._lost: str | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name="lease", daemon=True)

    @property
    def fence(self) -> int:
        """The fence number, higher than that of every earlier holder."""
        return self._record.fence

    @property
    def renewal(self) -> float:
        """Seconds between renewals."""
        return self._ttl / _RENEWALS_PER_TTL

    def acquire(self, above: int = 0, wait: Callable[[float], bool] | None = None) -> None:
        """Acquire the lease with a fence higher than `above`, and start to renew it.

        Returns at once if there is no holder, or if the holder has released the lease or is known to be dead. Otherwise
        watches the lease: if the holder renews it, raises LeaseHeld; if the holder does not renew it for the TTL, takes
        it over. `wait(seconds)` returns true if the caller has to end; then raises LeaseWaitInterrupted. May also raise
        StoreError. After an error, the method may be called again. If an earlier attempt acquired the lease but its
        answer was lost, the next one succeeds at once.
        """
        wait = wait or _sleep
        seen, since, logged = self._read(), self._clock(), False
        while True:
            record, tag = seen
            if tag is None or record is None or self._is_free(record) or self._has_expired(record, since):
                if self._take(record, tag, above):
                    break
                seen, since = self._watch(seen)
                continue
            if not logged:
                _log.info("%s holds the lease on %s: waiting to see whether it is alive", record.holder, self._where)
                logged = True
            if wait(min(self._poll, self._ttl / 4)):
                raise LeaseWaitInterrupted(f"asked to end while waiting for the lease on {self._where}")
            seen, since = self._watch(seen, since)
        if self._thread.ident is None:
            self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether another process is known to hold the lease."""
        return self._lost is not None

    def check_known(self) -> None:
        """Raise LeaseLost if another process is known to hold the lease."""
        if self._lost is not None:
            raise LeaseLost(self._lost)

    def check(self) -> None:
        """Check with the store that this process still holds the lease. Raises LeaseLost and StoreError."""
        self.check_known()
        self._renew()
        self.check_known()

    def release(self) -> None:
        """Stop renewing the lease and let another process acquire it at once. May be called again."""
        self._stop.set()
        if self._thread.ident is None:
            return
        self._thread.join()
        with self._lock:
            if self._lost is not None or self._record.released:
                return
            self._record = replace(self._record, released=True)
            try:
                self._store.put_if(KEY, self._record.encode(), self._tag)
            except StoreError as error:
                _log.warning("could not release the lease, so the next server waits %g s for it: %s", self._ttl, error)

    @property
    def _where(self) -> str:
        return self._store.location

    def _read(self) -> tuple[_LeaseRecord | None, str | None]:
        """Return the lease and its tag, which is None if there is no lease."""
        try:
            value, tag = self._store.get_with_tag(KEY)
        except NotFound:
            return None, None
        return _LeaseRecord.decode(value), tag

    def _watch(
        self, before: tuple[_LeaseRecord | None, str | None], since: float | None = None
    ) -> tuple[tuple[_LeaseRecord | None, str | None], float]:
        """Return the record and the time since which it is unchanged. Raises LeaseHeld if a live process changed it."""
        now = self._read()
        if since is not None and now[1] == before[1]:
            return now, since
        record = now[0]
        if now[1] != before[1] and record is not None and not self._is_free(record):
            raise LeaseHeld(
                f"{record.holder} writes its checkpoints to {self._where}: end it, or use another location; if it "
                f"has been killed, its lease ends {self._ttl:g} s after the last renewal"
            )
        return now, self._clock()

    def _is_own(self, record: _LeaseRecord) -> bool:
        return record.holder == self._record.holder

    def _is_free(self, record: _LeaseRecord) -> bool:
        # A record of this process is from an attempt whose answer was lost.
        return record.released or self._is_own(record) or record.holder.is_dead()

    def _has_expired(self, record: _LeaseRecord, since: float) -> bool:
        if self._clock() - since < self._ttl:
            return False
        _log.warning("%s has not renewed its lease on %s for %g s", record.holder, self._where, self._ttl)
        return True

    def _take(self, record: _LeaseRecord | None, tag: str | None, above: int) -> bool:
        """Try to acquire the lease. Return whether this process holds it now."""
        fence = max(above, record.fence if record else 0) + 1
        with self._lock:
            mine = replace(self._record, fence=fence, released=False)
            try:
                self._tag = self._store.put_if(KEY, mine.encode(), tag)
            except Conflict:
                return False
            self._record = mine
        if record is not None and not record.released and not self._is_own(record):
            _log.warning("took over the lease on %s from %s, with fence %d", self._where, record.holder, fence)
        return True

    def _renew(self) -> None:
        """Renew the lease; if another process holds it, set `lost` and call `on_lost` once. Raises StoreError."""
        with self._lock:
            if self._lost is not None or self._put_renewed():
                return
            record, tag = self._read()
            if tag is None or (record is not None and self._is_own(record)):
                # It was deleted, or an earlier renewal was stored although its answer was lost.
                self._tag = tag
                if not self._put_renewed():
                    raise StoreError(f"another process is changing the lease on {self._where}")
                return
            who = str(record.holder) if record else "an invalid lease file"
            fence = f" with fence {record.fence}" if record else ""
            self._lost = (
                f"the lease on {self._where} is held by {who}{fence} now: this server, with fence {self.fence}, did "
                "not renew it in time and stops writing"
            )
        _log.error("%s", self._lost)
        self._on_lost(self._lost)

    def _put_renewed(self) -> bool:
        """Write the renewed record; return whether the store still had the previous one."""
        mine = replace(self._record, renewed=self._record.renewed + 1)
        try:
            self._tag = self._store.put_if(KEY, mine.encode(), self._tag)
        except Conflict:
            return False
        self._record = mine
        return True

    def _renew_always(self) -> None:
        logged: float | None = None
        while not self._stop.wait(self.renewal):
            try:
                self._renew()
            except Exception as error:  # a failing store must not stop training
                if logged is None or time.monotonic() - logged >= _LOG_INTERVAL:
                    _log.warning("the lease could not be renewed, retrying: %s", error)
                    logged = time.monotonic()
            else:
                if logged is not None and self._lost is None:
                    _log.info("renewals of the lease succeed again")
                logged = None
            if self._lost is not None:
                return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
