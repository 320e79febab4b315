"""Let one of several parameter servers write to a location: the holder of a lease, under a fence that only grows."""

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
    """A process. `pid` is valid within `boot` and `pid_namespace`; `started` distinguishes processes with one pid.

    They are empty if the system does not say; then nobody is ever known to be dead.
    """

    holder: str
    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Holder:
        """Return the calling process. Each call returns another holder: a process may acquire several leases in its
        life.
        """
        pid = os.getpid()
        return cls(uuid.uuid4().hex, socket.gethostname(), _boot(), _pid_namespace(), pid, _process(pid)[0])

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Holder:
        """Read what `as_json` returned. Raises TypeError, KeyError and ValueError."""
        texts = {field.name: str(value[field.name]) for field in fields(cls) if field.name != "pid"}
        return cls(pid=int(value["pid"]), **texts)

    def as_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)

    def is_dead(self) -> bool:
        """Return whether the process is known to have ended: only those of this boot and this pid namespace can be.

        A process that has ended and was not waited for yet is dead.
        """
        if not self.boot or not self.started or (self.boot, self.pid_namespace) != (_boot(), _pid_namespace()):
            return False
        started, state = _process(self.pid)
        return started != self.started or state in ("Z", "X")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _boot() -> str:
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
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a program's name may be any bytes
    except OSError:
        return "", ""
    # The name of the program, in parentheses, may hold anything.
    words = text.rpartition(")")[2].split()
    return words[19], words[0]


KEY = "lease.json"
TTL = 15.0
"""Seconds without a renewal after which a lease is taken over if its holder is not known to be dead."""
_RENEWALS_PER_TTL = 3
_COMPLAIN = 60.0  # seconds between two sentences of the log on the same trouble


class LeaseHeld(StoreError):
    """Another process holds the lease and is alive."""


class LeaseLost(Exception):
    """Another process holds the lease now, so nothing may be written. The message names it."""


class LeaseWaitInterrupted(Exception):
    """The process that waited for the lease was told to end."""


@dataclass(frozen=True, slots=True)
class _LeaseRecord:
    """The content of `lease.json`. `renewed` is a counter, not a time: no two clocks are compared."""

    fence: int
    renewed: int
    released: bool
    holder: Holder

    def encode(self) -> bytes:
        own = {"fence": self.fence, "renewed": self.renewed, "released": self.released}
        return json.dumps({**self.holder.as_json(), **own}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> _LeaseRecord | None:
        """Decode a record; return None if `encode` did not write it."""
        try:
            value: dict[str, Any] = json.loads(data)
            return cls(int(value["fence"]), int(value["renewed"]), bool(value["released"]), Holder.of(value))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            return None


class Lease:
    """The right to write to `store`: acquired once, renewed by a thread, released by `release`.

    `on_lost` is called once, from that thread, with a sentence, if somebody else has it now. A store that is away
    loses nothing: who cannot renew cannot publish either, and goes on as soon as the store is back and nobody has come.
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
        """The fence: higher than that of every earlier holder."""
        return self._record.fence

    @property
    def renewal(self) -> float:
        """Seconds between renewals."""
        return self._ttl / _RENEWALS_PER_TTL

    def acquire(self, above: int = 0, wait: Callable[[float], bool] | None = None) -> None:
        """Get the lease, with a fence higher than `above`, and begin to renew it.

        Returns at once if nobody holds the lease, or if its holder has released it or is known to be dead. Otherwise
        watches it: a holder that renews it is alive, and one that does not for the TTL has lost it. `wait(seconds)`
        returns true if the caller has to end. Raises LeaseHeld, LeaseWaitInterrupted and StoreError; it may then be
        called again, and gets at once a lease that an earlier attempt obtained without learning of it.
        """
        wait = wait or _sleep
        seen, since, told = self._read(), self._clock(), False
        while True:
            record, tag = seen
            if tag is None or record is None or self._is_free(record):
                if self._take(record, tag, above):
                    break
                seen, since = self._watched(seen)
                continue
            if self._clock() - since >= self._ttl:
                _log.warning("%s has not renewed its lease on %s for %g s", record.holder, self._where, self._ttl)
                if self._take(record, tag, above):
                    break
                seen, since = self._watched(seen)
                continue
            if not told:
                _log.info("%s holds the lease on %s: watching whether it is alive", record.holder, self._where)
                told = True
            if wait(min(self._poll, self._ttl / 4)):
                raise LeaseWaitInterrupted(f"told to end while waiting for the lease on {self._where}")
            seen, since = self._watched(seen, since)
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
        """Ask the store whether the lease is still this process's. Raises LeaseLost and StoreError."""
        self.check_known()
        self._renew()
        self.check_known()

    def release(self) -> None:
        """Stop renewing the lease and let others acquire it at once. May be called again."""
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
                _log.warning("the lease could not be given back, the next server will wait %g s: %s", self._ttl, error)

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

    def _watched(
        self, before: tuple[_LeaseRecord | None, str | None], since: float | None = None
    ) -> tuple[tuple[_LeaseRecord | None, str | None], float]:
        """Return the record and the time since which it is unchanged. Raises LeaseHeld if a living process has changed
        it.
        """
        now = self._read()
        if since is not None and now[1] == before[1]:
            return now, since
        record = now[0]
        if now[1] != before[1] and record is not None and not self._is_free(record):
            raise LeaseHeld(
                f"{record.holder} writes its checkpoints to {self._where}: end it, or use another location; where it "
                f"is gone, its lease ends {self._ttl:g} s after its last sign of life"
            )
        return now, self._clock()

    def _is_own(self, record: _LeaseRecord) -> bool:
        return record.holder == self._record.holder

    def _is_free(self, record: _LeaseRecord) -> bool:
        """Return whether no other living process holds it. A record of this process is from an attempt whose answer was
        lost.
        """
        return record.released or self._is_own(record) or record.holder.is_dead()

    def _take(self, record: _LeaseRecord | None, tag: str | None, above: int) -> bool:
        """Try to take the lease; return whether it is this process's now."""
        fence = max(above, record.fence if record else 0) + 1
        with self._lock:
            mine = replace(self._record, fence=fence, released=False)
            try:
                self._tag = self._store.put_if(KEY, mine.encode(), tag)
            except Conflict:
                return False
            self._record = mine
        if record is not None and not record.released and not self._is_own(record):
            _log.warning("took the lease on %s over from %s, with fence %d", self._where, record.holder, fence)
        return True

    def _renew(self) -> None:
        """Renew the lease. Raises StoreError. If another process holds it, `lost` becomes true and `on_lost` is called
        once.
        """
        with self._lock:
            if self._lost is not None or self._put_renewed():
                return
            record, tag = self._read()
            if tag is None or (record is not None and self._is_own(record)):
                # Somebody has deleted it; or an earlier renewal had arrived although its answer had not.
                self._tag = tag
                if not self._put_renewed():
                    raise StoreError(f"the lease on {self._where} is being changed by somebody else")
                return
            who = str(record.holder) if record else "a file that is no lease"
            fence = f" with fence {record.fence}" if record else ""
            self._lost = (
                f"the lease on {self._where} is held by {who}{fence} now: this server, with fence {self.fence}, was "
                "not heard of for too long and writes nothing more"
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
        complained: float | None = None
        while not self._stop.wait(self.renewal):
            try:
                self._renew()
            except Exception as error:  # whatever the store does, training goes on
                if complained is None or time.monotonic() - complained >= _COMPLAIN:
                    _log.warning("the lease could not be renewed, trying on: %s", error)
                    complained = time.monotonic()
            else:
                if complained is not None and self._lost is None:
                    _log.info("the lease is renewed again")
                complained = None
            if self._lost is not None:
                return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
