"""Claims of clients on resources, by client and by network address, and logs of throttled or stuck clients.

When a worker has received its client's hello, the server's process decides here whether to grant the claim. If it does,
the worker gets a row and a bucket (see `meters`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from relaax.rlx.errors import ErrorCode
from relaax.server.rlx_server.clients.accounts import ClientAccount, ClientAccounts
from relaax.server.rlx_server.clients.meters import STUCK, MeterReading, Meters
from relaax.server.rlx_server.worker_reports import Claim, ClaimRefusal, Grant
from relaax.server.security.strikes import network_of

_log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
WINDOW_SECONDS = 5.0
"""Period over which demand beyond quotas is measured."""
STUCK_SECONDS = 10.0
"""A connection is stuck if it waits this long for its client in the middle of a message or an answer."""
LOG_SECONDS = 60.0
"""Minimum time between two log lines about one client, separately for throttled and stuck."""
LOGGED_REFUSALS = 20
"""Maximum logged refusals of a client per minute."""
SPARE_ROWS = 256
RETRY_SECONDS = 5.0
REVOKED = "the client's token is no longer valid"
UNNAMED = "(unnamed)"
"""Label of unnamed clients in metrics."""
_SECTION = "relaax-rlx-server"


@dataclass(slots=True)
class _Claimant:
    client: str
    digest: str
    host: str
    environments: int
    row: int
    before: MeterReading
    """The reading at the start of the window."""
    released: bool = False


@dataclass(slots=True)
class _Refused:
    """Rate limit of a client's logged refusals. Metrics count all refusals."""

    since: float = 0.0
    count: int = 0

    def should_log(self, now: float) -> bool:
        if now - self.since >= LOG_SECONDS:
            self.since, self.count = now, 0
        self.count += 1
        return self.count <= LOGGED_REFUSALS


@dataclass(slots=True)
class _Totals:
    """Totals of a client over its ended connections."""

    steps: float = 0.0
    bytes: float = 0.0
    throttled_seconds: float = 0.0
    refusals: int = 0
    refused: _Refused = field(default_factory=_Refused)
    logged_at: dict[str, float] = field(default_factory=dict)
    """Times of the last log lines about the client, by subject: "throttled" or "stuck"."""


class Claims:
    """The granted claims, and decisions on new ones. `clock` gives seconds; workers use the same clock."""

    def __init__(
        self,
        clients: ClientAccounts,
        max_environments: int,
        max_environments_per_address: int,
        max_workers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OSError if shared memory cannot be allocated."""
        self._clients = clients
        self._max_environments = max_environments
        self._max_environments_per_address = max_environments_per_address
        self._clock = clock
        self._by_pid: dict[int, _Claimant] = {}
        rows = max_workers + SPARE_ROWS
        self.meters = Meters(rows, rows + 1)
        self._free = list(range(rows - 1, -1, -1))
        self._buckets: dict[str, int] = {}  # by client name, for clients with connections
        self._free_buckets = list(range(rows, 0, -1))  # bucket 0 is shared by all clients without quotas
        self._totals: dict[str, _Totals] = {}
        self._next_check = self._window_at = clock()

    def decide(
        self, pid: int, host: str, claim: Claim, free_place: Callable[[], bool] = lambda: False
    ) -> Grant | ClaimRefusal:
        """Grant or refuse the claim of a worker's client. The client holds a granted claim until `release`.

        `free_place` is called if the client's address exceeds its limit. It may evict an unproven client.
        """
        client = self._clients.get(claim.client) if claim.client else None
        if self._environments_from(host) + claim.environments > self._max_environments_per_address:
            free_place()
        refusal = self._refusal(host, claim, client)
        if refusal is None and not self._free:
            refusal = ClaimRefusal(
                ErrorCode.OVERLOADED, "too many connections are still closing: retry later", RETRY_SECONDS
            )
        totals = self._totals_of(claim.client)
        if refusal is not None:
            totals.refusals += 1
            if totals.refused.should_log(self._clock()):
                _log.warning("refused the claim of %s: %s", name_of(claim.client, host), refusal.sentence)
            return refusal
        row = self._free.pop()
        self.meters.clear(row)
        self._by_pid[pid] = _Claimant(claim.client, claim.digest, host, claim.environments, row, MeterReading())
        return Grant(row, self._bucket_of(client))

    def _refusal(self, host: str, claim: Claim, client: ClientAccount | None) -> ClaimRefusal | None:
        if claim.client and (client is None or client.digest != claim.digest):
            return ClaimRefusal(ErrorCode.UNAUTHENTICATED, REVOKED)
        more, raise_it = claim.environments, "or have {} raised at the server"
        if more > self._max_environments:
            key = f"{_SECTION}.max_environments"
            return ClaimRefusal(
                ErrorCode.LIMIT_EXCEEDED,
                f"this connection has {more} environments, and at most {self._max_environments} are allowed ({key}): "
                f"use more connections with fewer environments each, {raise_it.format('the key')}",
            )
        here = [other for other in self._by_pid.values() if not other.released]
        key = f"{_SECTION}.max_environments_per_address"
        held, most = self._environments_from(host), self._max_environments_per_address
        bounds = [(held, most, f"the connections from {network_of(host)}", key)]
        own = [other for other in here if other.client == claim.client] if client is not None else []
        if client is not None and client.max_environments is not None:
            there = sum(other.environments for other in own)
            key = f"max-environments in {_SECTION}.clients_file"
            bounds.append((there, client.max_environments, f"the connections of client {client.name}", key))
        for there, most, whose, key in bounds:
            if there + more > most:
                code = ErrorCode.LIMIT_EXCEEDED if more > most else ErrorCode.OVERLOADED
                way_out = "use fewer environments" if more > most else "wait until other connections have ended"
                return ClaimRefusal(
                    code,
                    f"{whose} have {there} environments, this one has {more}, and at most {most} are allowed ({key}): "
                    f"{way_out}, {raise_it.format('that')}",
                    RETRY_SECONDS if code.retryable else 0.0,
                )
        if client is not None and client.max_connections is not None and len(own) >= client.max_connections:
            return ClaimRefusal(
                ErrorCode.OVERLOADED,
                f"client {client.name} has {len(own)} connections, and at most {client.max_connections} are allowed "
                f"(max-connections in {_SECTION}.clients_file): close one, {raise_it.format('that')}",
                RETRY_SECONDS,
            )
        return None

    def _environments_from(self, host: str) -> int:
        network = network_of(host)
        here = (each for each in self._by_pid.values() if not each.released)
        return sum(each.environments for each in here if network_of(each.host) == network)

    def _bucket_of(self, client: ClientAccount | None) -> int:
        if client is None:
            return 0
        if client.name not in self._buckets:
            self._buckets[client.name] = self._free_buckets.pop()
            self.meters.set_rates(self._buckets[client.name], None, None)
        self.meters.set_rates(self._buckets[client.name], client.steps_per_second, client.bytes_per_second)
        return self._buckets[client.name]

    def release(self, pid: int) -> None:
        """Release the claim of a client that its worker no longer serves."""
        if pid in self._by_pid:
            self._by_pid[pid].released = True

    def remove(self, pid: int) -> None:
        """Remove a worker that has ended."""
        connection = self._by_pid.pop(pid, None)
        if connection is None:
            return
        _add(self._totals_of(connection.client), self.meters.read(connection.row))
        self._free.append(connection.row)
        name = connection.client
        if name and all(other.client != name for other in self._by_pid.values()):
            self._free_buckets.append(self._buckets.pop(name))
            if self._clients.get(name) is None:
                self._totals.pop(name, None)

    def check(self) -> list[int]:
        """Reload changed clients, and log throttled and stuck clients. Call this at intervals.

        Returns the process ids of workers whose clients' tokens have been revoked.
        """
        revoked = self._reread() if self._clients.reload_if_changed() else []
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            readings = {pid: self.meters.read(each.row) for pid, each in self._by_pid.items() if not each.released}
            self._log_stuck(readings, now)
            if now - self._window_at >= WINDOW_SECONDS:
                self._log_throttled(readings, now - self._window_at, now)
                self._window_at = now
        return revoked

    def _reread(self) -> list[int]:
        known = {client.name: client for client in self._clients}
        for name in self._totals.keys() - known.keys() - self._buckets.keys() - {""}:
            del self._totals[name]
        for name in self._buckets.keys() & known.keys():
            self._bucket_of(known[name])
        return [
            pid
            for pid, each in self._by_pid.items()
            if each.client and (each.client not in known or known[each.client].digest != each.digest)
        ]

    def _log_stuck(self, readings: dict[int, MeterReading], now: float) -> None:
        for name, pids in self._by_client(pid for pid, reading in readings.items() if _is_stuck(reading, now)):
            first = min(pids, key=lambda pid: readings[pid].stuck_since)
            if self._should_log(name, "stuck", now):
                reading, others = readings[first], len(pids) - 1
                _log.warning(
                    "%s %s: stuck for %.0f s%s",
                    name_of(name, self._by_pid[first].host),
                    STUCK[int(reading.stuck_at)],
                    now - reading.stuck_since,
                    f"; {others} more of its connections are stuck" if others else "",
                )

    def _log_throttled(self, readings: dict[int, MeterReading], seconds: float, now: float) -> None:
        for name, pids in self._by_client(readings):
            asked, throttled = [0.0, 0.0], [0.0, 0.0]
            for pid in pids:
                reading, before = readings[pid], self._by_pid[pid].before
                self._by_pid[pid].before = reading
                waited = [reading[index] - before[index] for index in (2, 3)]
                busy = max(seconds - sum(waited), seconds / 1000)
                for index in (0, 1):
                    asked[index] += (reading[index] - before[index]) / busy
                    throttled[index] += waited[index]
            client = self._clients.get(name)
            if client is None or not sum(throttled) or not self._should_log(name, "throttled", now):
                continue
            host = self._by_pid[max(pids, key=lambda pid: sum(readings[pid][2:4]))].host
            by_steps = throttled[0] >= throttled[1]
            _log.warning(
                "%s is throttled: about %.0f %s/s asked, %.0f allowed",
                name_of(name, host),
                asked[0] if by_steps else asked[1],
                "steps" if by_steps else "bytes",
                (client.steps_per_second if by_steps else client.bytes_per_second) or 0.0,
            )

    def _by_client(self, pids: Iterable[int]) -> Iterable[tuple[str, list[int]]]:
        found: dict[str, list[int]] = {}
        for pid in pids:
            found.setdefault(self._by_pid[pid].client, []).append(pid)
        return found.items()

    def _should_log(self, name: str, what: str, now: float) -> bool:
        logged_at = self._totals_of(name).logged_at
        if now - logged_at.get(what, now - LOG_SECONDS) < LOG_SECONDS:
            return False
        logged_at[what] = now
        return True

    def _totals_of(self, name: str) -> _Totals:
        return self._totals.setdefault(name, _Totals())

    def sample(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each client, by the client's label in metrics.

        These are the clients of the file, and others that have had connections.
        """
        now, found = self._clock(), {}
        connections, environments, stuck = Counter[str](), Counter[str](), Counter[str]()
        totals = {name: _Totals(t.steps, t.bytes, t.throttled_seconds, t.refusals) for name, t in self._totals.items()}
        for each in self._by_pid.values():
            reading = self.meters.read(each.row)
            _add(totals.setdefault(each.client, _Totals()), reading)
            if not each.released:
                connections[each.client] += 1
                environments[each.client] += each.environments
                stuck[each.client] += _is_stuck(reading, now)
        for name in {"", *(client.name for client in self._clients), *totals}:
            own = totals.get(name, _Totals())
            found[name or UNNAMED] = {
                "connections": connections[name],
                "environments": environments[name],
                "stuck": stuck[name],
                "steps": round(own.steps),
                "bytes": round(own.bytes),
                "throttled_seconds": round(own.throttled_seconds, 3),
                "refusals": own.refusals,
            }
        return found


def _add(totals: _Totals, reading: MeterReading) -> None:
    totals.steps += reading.steps
    totals.bytes += reading.bytes
    totals.throttled_seconds += reading.throttled_by_steps + reading.throttled_by_bytes


def _is_stuck(reading: MeterReading, now: float) -> bool:
    return reading.stuck_since > 0 and now - reading.stuck_since >= STUCK_SECONDS


def name_of(client: str, host: str) -> str:
    """Return the name of a client for the log."""
    return f"client {client} ({host})" if client else f"unnamed client ({host})"
