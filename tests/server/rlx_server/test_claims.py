"""Tests of the quotas of clients, with a simulated clock."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaax.rlx.errors import ErrorCode
from relaax.server.rlx_server.clients.accounts import CHECK_SECONDS, Authentication, ClientAccounts, Identity
from relaax.server.rlx_server.clients.claims import LOG_SECONDS, LOGGED_REFUSALS, STUCK_SECONDS, WINDOW_SECONDS, Claims
from relaax.server.rlx_server.clients.meters import WRITING, Meter
from relaax.server.rlx_server.worker_reports import Claim, ClaimRefusal, Grant
from support.named_clients import ClientsFile, token_of

HERE, THERE = "127.0.0.1", "127.0.0.2"


class Server:
    """The accounts and claims of an RLX server with a clients file. `now`: simulated time in seconds."""

    def __init__(self, folder: Path, address_limit: int = 1000) -> None:
        self.file = ClientsFile(folder)
        self.file.write()
        self.now = 1000.0
        self.authentication = Authentication(names={})
        self._address_limit = address_limit
        self._pids = itertools.count(1)

    def open(self, **clients: dict[str, object]) -> Claims:
        self.file.write(**clients)
        accounts = ClientAccounts(str(self.file.path), self.authentication, lambda: self.now)
        self.claims = Claims(accounts, 100, self._address_limit, 10, lambda: self.now)
        return self.claims

    def claim(
        self, name: str, environments: int = 1, host: str = HERE, shown_digest: str | None = None
    ) -> tuple[int, Grant | ClaimRefusal]:
        """Return the process id of the claiming worker and the decision."""
        pid = next(self._pids)
        digest = hashlib.sha256(token_of(name).encode()).hexdigest() if name else ""
        return pid, self.claims.decide(pid, host, Claim(name, shown_digest or digest, environments))

    def granted(self, name: str, environments: int = 1, host: str = HERE) -> tuple[int, Grant]:
        pid, decision = self.claim(name, environments, host)
        assert isinstance(decision, Grant), decision
        return pid, decision

    def refused(self, name: str, environments: int = 1, shown_digest: str | None = None) -> ClaimRefusal:
        _, decision = self.claim(name, environments, HERE, shown_digest)
        assert isinstance(decision, ClaimRefusal), decision
        return decision

    def reread(self, **clients: dict[str, object]) -> list[int]:
        """Replace the file; return the workers whose tokens are revoked."""
        self.file.write(**clients)
        revoked = []
        for _ in range(3):
            self.now += CHECK_SECONDS
            revoked += self.claims.check()
        return revoked

    def meter(self, grant: Grant) -> Meter:
        return self.claims.meters.meter(grant.row, grant.bucket)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    return Server(tmp_path)


def test_max_connections_bounds_a_client_until_one_disconnects(server: Server) -> None:
    server.open(lab={"max-connections": 2}, room={})
    first, _ = server.granted("lab")
    server.granted("lab")
    server.granted("room")
    refusal = server.refused("lab")
    assert (refusal.code, refusal.retry_after_seconds > 0) == (ErrorCode.OVERLOADED, True)
    assert "client lab has 2 connections, and at most 2 are allowed (max-connections in" in refusal.sentence
    server.claims.release(first)
    server.granted("lab")
    assert server.refused("lab").code is ErrorCode.OVERLOADED


def test_quotas_of_a_client_ignore_other_clients(server: Server) -> None:
    server.open(lab={"max-connections": 1, "max-environments": 10}, room={"max-environments": 90})
    for name in ("room", "room", "lab"):
        server.granted(name, 10)
    assert "have 10 environments, this one has 1, and at most 10" in server.refused("lab", 1).sentence
    server.granted("room", 70)
    assert "have 90 environments" in server.refused("room", 1).sentence


def test_max_environments_is_inclusive(server: Server) -> None:
    server.open(lab={"max-environments": 10})
    server.granted("lab", 4)
    server.granted("lab", 6)
    assert server.refused("lab", 1).code is ErrorCode.OVERLOADED
    assert server.refused("lab", 11).code is ErrorCode.LIMIT_EXCEEDED, "this connection alone exceeds the quota"


def test_address_limit_counts_all_clients(tmp_path: Path) -> None:
    server = Server(tmp_path, address_limit=20)
    server.open(lab={}, room={})
    server.granted("lab", 10)
    server.granted("room", 10)
    assert f"the connections from {HERE} have 20 environments" in server.refused("lab", 1).sentence
    server.granted("lab", 10, THERE)


def test_make_room_is_called_at_the_address_limit_only(tmp_path: Path) -> None:
    server = Server(tmp_path, address_limit=10)
    server.open(lab={})
    pid, _ = server.granted("lab", 10)
    freed: list[int] = []

    def free_place() -> bool:
        freed.append(pid)
        server.claims.release(pid)
        return True

    digest = hashlib.sha256(token_of("lab").encode()).hexdigest()
    for host, environments in ((THERE, 1), (HERE, 10)):
        decision = server.claims.decide(500 + environments, host, Claim("lab", digest, environments), free_place)
        assert isinstance(decision, Grant)
    assert freed == [pid], "room is made only for the second claim, which exceeds the limit"


def test_replaced_token_is_revoked(server: Server) -> None:
    server.open(lab={}, room={})
    old = hashlib.sha256(token_of("lab").encode()).hexdigest()
    lab, _ = server.granted("lab")
    server.granted("room")
    new = hashlib.sha256(b"another token of lab").hexdigest()
    server.file.write(lab={"token-sha256": new}, room={})
    assert server.reread(lab={"token-sha256": new}, room={}) == [lab]
    refusal = server.refused("lab", shown_digest=old)  # it was identified just before the file was reloaded
    assert (refusal.code, refusal.sentence) == (
        ErrorCode.UNAUTHENTICATED,
        "the client's token is no longer valid",
    )
    _, decision = server.claim("lab", shown_digest=new)
    assert isinstance(decision, Grant)
    assert server.authentication.identify(token_of("lab")) != Identity("lab", old)
    assert server.authentication.identify("another token of lab") == Identity("lab", new)


def test_removed_client_is_revoked(server: Server) -> None:
    server.open(lab={}, room={})
    lab, _ = server.granted("lab")
    server.granted("room")
    server.granted("")
    assert server.reread(room={}) == [lab]
    assert server.refused("lab").code is ErrorCode.UNAUTHENTICATED
    server.granted("room")


def test_changed_quota_applies_to_open_connections(server: Server) -> None:
    server.open(lab={"steps-per-second": 10})
    _, grant = server.granted("lab")
    assert server.claims.meters.numbers[8 * grant.bucket] == 10
    server.reread(lab={"steps-per-second": 40})
    assert server.claims.meters.numbers[8 * grant.bucket] == 40


def test_clients_with_names_have_buckets_of_their_own(server: Server) -> None:
    server.open(lab={"steps-per-second": 10}, room={"steps-per-second": 20})
    buckets = [server.granted(name)[1].bucket for name in ("lab", "lab", "room", "")]
    assert buckets[0] == buckets[1]
    assert len({*buckets}) == 3
    assert buckets[3] == 0


def test_rows_of_ended_workers_are_cleared_and_reused(server: Server) -> None:
    server.open(lab={"steps-per-second": 10})
    pid, before = server.granted("lab")
    server.meter(before).charge(5, 100)
    server.claims.remove(pid)
    for _ in range(1000):  # more connections than rows
        pid, grant = server.granted("lab")
        assert server.claims.meters.read(grant.row).steps == 0
        server.claims.remove(pid)
    assert server.claims.sample()["lab"]["steps"] == 5, "the total includes ended connections"


def test_bucket_is_kept_while_its_client_is_connected(server: Server) -> None:
    server.open(lab={"steps-per-second": 10}, room={"steps-per-second": 99})
    first, grant = server.granted("lab")
    server.granted("lab")
    server.claims.remove(first)
    _, other = server.granted("room")
    assert other.bucket != grant.bucket


def test_sample_has_open_connections_and_totals(server: Server) -> None:
    server.open(lab={"max-environments": 10}, room={})
    first, one = server.granted("lab", 3)
    _, two = server.granted("lab", 4)
    server.refused("lab", 9)
    server.meter(one).charge(3, 100)
    server.meter(two).charge(4, 1000)
    server.claims.release(first)
    server.claims.remove(first)
    found = server.claims.sample()
    expected = {"connections": 1, "environments": 4, "stuck": 0, "steps": 7, "bytes": 1100, "refusals": 1}
    assert found["lab"] == expected | {"throttled_seconds": 0.0}
    assert found["room"]["connections"] == found["(unnamed)"]["connections"] == 0


def test_logged_refusals_are_bounded_per_client(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.open(lab={"max-connections": 1}, room={"max-connections": 1})
    for name in ("lab", "room"):
        server.granted(name)
    for _ in range(2 * LOGGED_REFUSALS):
        server.refused("lab")
    server.refused("room")
    assert caplog.text.count("refused the claim of client lab") == LOGGED_REFUSALS
    assert caplog.text.count("refused the claim of client room") == 1
    server.now += LOG_SECONDS
    server.refused("lab")
    assert caplog.text.count("refused the claim of client lab") == LOGGED_REFUSALS + 1
    assert server.claims.sample()["lab"]["refusals"] == 2 * LOGGED_REFUSALS + 1, "all are counted"


def test_stuck_connection_is_logged_once(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaax.server.rlx_server.clients.meters.time.monotonic", lambda: server.now)
    server.open(lab={})
    _, grant = server.granted("lab")
    server.meter(grant).set_stuck(WRITING)
    for seconds, stuck in ((STUCK_SECONDS - 1.0, 0), (STUCK_SECONDS, 1)):
        server.now = 1000.0 + seconds
        server.claims.check()
        assert server.claims.sample()["lab"]["stuck"] == stuck
        assert caplog.text.count("client lab (127.0.0.1) does not read its answers: stuck for 10 s") == stuck
    server.now += 30.0
    server.claims.check()
    assert caplog.text.count("does not read") == 1, "the warning is logged once"
    server.meter(grant).clear_stuck()
    assert server.claims.sample()["lab"]["stuck"] == 0


def test_throttled_client_is_logged_with_its_rates(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    server.open(lab={"steps-per-second": 10}, room={"steps-per-second": 10})
    _, lab = server.granted("lab")
    _, room = server.granted("room")
    numbers, width = server.claims.meters.numbers, 8
    at = (server.claims.meters.buckets + lab.row) * width
    for window, waited in enumerate((0.0, 4.0)):
        numbers[at] += 50.0  # steps
        numbers[at + 2] += waited  # seconds that the quota of steps delayed the client
        server.meter(room).charge(10, 0)
        server.now += WINDOW_SECONDS
        server.claims.check()
        assert caplog.text.count("throttled") == window
    assert "client lab (127.0.0.1) is throttled: about 50 steps/s asked, 10 allowed" in caplog.text
