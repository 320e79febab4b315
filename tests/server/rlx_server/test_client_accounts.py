"""Tests of named clients over real sockets: tokens, quotas, throttling and disconnection."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from relaax import rlx
from relaax.rlx import ErrorCode
from relaax.server.rlx_server.clients.meters import BURST_SECONDS
from support.named_clients import ClientsFile, token_of
from support.offline_algorithm import WAIT
from support.processes import wait_until
from support.rlx_line import PATIENCE, Line
from support.rlx_pair import make_hello, make_step
from support.scrape import scraped, status_url

pytestmark = pytest.mark.checks("relaax/server/rlx_server")

PREFIX = "relaax_rlx_server_client_"
MANY = 60_000
OWN_TOKEN = "the-token-of-all-others-0123456789"
SHORT_TIMES = {
    "clients.accounts.CHECK_SECONDS": 0.2,
    "clients.claims.CHECK_SECONDS": 0.2,
    "clients.claims.STUCK_SECONDS": 1.0,
    "clients.claims.WINDOW_SECONDS": 1.0,
    "listening.listener.TICK_SECONDS": 0.1,
}
"""Shorter intervals of the server, in seconds."""


@pytest.fixture
def clients(tmp_path: Path) -> ClientsFile:
    return ClientsFile(tmp_path)


def refused(line: Line, **fields: object) -> rlx.Error:
    """Send a hello and return the error that refuses it."""
    line.send(make_hello(**fields))  # type: ignore[arg-type]
    error: rlx.Error = line.expect(rlx.Error)
    line.expect_end()
    return error


@pytest.mark.parametrize("worker_start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_client_name_is_identified_by_its_own_token(serve, clients: ClientsFile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "token").write_text(OWN_TOKEN)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "token-of-room").write_text(token_of("room") + "\n")
    (tmp_path / "token-of-room").chmod(0o600)
    text = '{"room": {"token-file": "token-of-room"}, "lab": {"token-sha256": "%s"}}'
    clients.write(lab={})
    clients.write_text(text % clients.path.read_text().split('"')[5])
    server, address = serve(clients_file=str(clients.path), token_file=str(tmp_path / "token"))
    for name in ("lab", "room"):
        with Line(address) as line:
            line.open(token=token_of(name), host="h")
            assert line.init() == 0
        wait_until(lambda name=name: f"of client {name} at h: actors [0]" in server.stderr, "the log names the client")  # type: ignore[misc]
    with Line(address) as line:
        line.open(token=OWN_TOKEN)
    with Line(address) as line:
        error = refused(line, token=token_of("stranger"))
        assert (error.code, error.retryable) == (ErrorCode.UNAUTHENTICATED, False)
    with Line(address) as line:
        assert "the client sent none" in refused(line).message
    assert token_of("lab") not in server.stderr


def test_client_without_token_is_refused_beside_named_clients(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={})
    _, address = serve("--bind", "0.0.0.0:0", clients_file=str(clients.path))  # allowed, as every client needs a token
    with Line(f"127.0.0.1:{address.rpartition(':')[2]}") as line:
        assert refused(line).code is ErrorCode.UNAUTHENTICATED


def test_connections_and_environments_of_a_client_are_bounded(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={"max-connections": 2, "max-environments": 10}, room={})
    server, address = serve("--status-bind", "127.0.0.1:0", clients_file=str(clients.path))
    lab = token_of("lab")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(4)]
        error = refused(lines[0], token=lab, environments=11)
        assert (error.code, error.retryable) == (ErrorCode.LIMIT_EXCEEDED, False), (
            "this connection alone exceeds the quota"
        )
        assert all(word in error.message for word in ("client lab", "11", "10", "max-environments"))
        lines[1].open(token=lab, environments=7)
        lines[1].init()
        error = refused(lines[2], token=lab, environments=4)
        assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True), "another connection may end"
        assert error.retry_after_seconds > 0
        lines[3].open(token=lab, environments=3)
        with Line(address) as extra:
            error = refused(extra, token=lab, environments=1)
            assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True)
        with Line(address) as room:
            room.open(token=token_of("room"), environments=100)
            room.init()
            url = status_url(server)
            wait_until(
                lambda: scraped(url).get(f'{PREFIX}environments{{client="room"}}') == 100,
                "the metrics count the environments",
                60,
            )
            values = scraped(url)
        assert values[f'{PREFIX}connections{{client="lab"}}'] == 2
        assert values[f'{PREFIX}environments{{client="lab"}}'] == 10
        assert values[f'{PREFIX}refusals_total{{client="lab"}}'] == 3
        assert values[f'{PREFIX}refusals_total{{client="room"}}'] == 0
        lines[1].send(rlx.Bye())
        lines[1].expect_end()
        tried: list[Line] = []

        def is_admitted() -> bool:
            line = stack.enter_context(Line(address))
            line.send(make_hello(token=lab, environments=7))
            tried.append(line)
            return isinstance(line.receive(), rlx.Welcome)

        wait_until(is_admitted, "the environments of the ended connection are free", 60)


def test_environments_per_connection_and_address_are_bounded(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(max_environments=10, max_environments_per_address=25)
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(4)]
        error = refused(lines[0], environments=11)
        assert (error.code, error.retryable) == (ErrorCode.LIMIT_EXCEEDED, False)
        assert all(word in error.message for word in ("11", "10", "relaax-rlx-server.max_environments)"))
        for line in lines[1:3]:
            assert line.open(environments=10).limits.max_environments == 10
            line.init()
        error = refused(lines[3], environments=6)
        assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True)
        assert all(word in error.message for word in ("127.0.0.1", "20", "6", "25", "max_environments_per_address"))
        with Line(address, source="127.0.0.2") as other:
            other.open(environments=10)
    assert "actors [0-9]" in server.stderr, "a range of actors is abbreviated"
    assert server.stderr.count("refused the claim of unnamed client (127.0.0.1)") == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_idle_unproven_environments_are_evicted_for_new_clients(serve) -> None:  # type: ignore[no-untyped-def]
    """Clients that send a hello and never an init use up the limit of their address only for a short time."""
    _, address = serve(max_environments=10, max_environments_per_address=40)
    with contextlib.ExitStack() as stack:
        idle_lines = [stack.enter_context(Line(address)) for _ in range(4)]
        for line in idle_lines:
            line.send(make_hello(environments=10))
        attempts = 0

        def is_admitted() -> bool:
            nonlocal attempts
            attempts += 1
            line = stack.enter_context(Line(address))
            line.send(make_hello(environments=10))
            if isinstance(line.receive(), rlx.Welcome):
                line.init()
                return True
            return False

        wait_until(is_admitted, "an honest client is admitted", 60, 0.2)
        wait_until(is_admitted, "a second honest client is admitted", 60, 0.2)
        assert attempts > 2, "the first attempts must have been refused"


def rate_of(line: Line, seconds: float) -> float:
    """Return the environment steps per second of a connection that steps without a pause."""
    start, steps = time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        line.step()
        steps += line.hello.environments
    return steps / elapsed


class Stepping:
    """Threads that step several connections without a pause until the block ends."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines
        self._steps = [0] * len(lines)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(index,)) for index in range(len(lines))]

    def __enter__(self) -> Stepping:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def steps(self) -> list[int]:
        """Environment steps of each connection so far."""
        return [*self._steps]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def _run(self, index: int) -> None:
        line = self._lines[index]
        while not self._ended.is_set():
            line.step()
            self._steps[index] += line.hello.environments


def spend_burst(line: Line, rate: float) -> None:
    """Use up the burst of steps that the quota allows."""
    for _ in range(2 + int(2 * rate * BURST_SECONDS / line.hello.environments)):
        line.step()


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_step_quota_is_shared_per_client_and_slows_no_other(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    rate = 80
    clients.write(lab={"steps-per-second": rate}, room={})
    server, address = serve("--status-bind", "127.0.0.1:0", clients_file=str(clients.path), constants=SHORT_TIMES)
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(3)]
        for line, name, environments in zip(lines, ("lab", "lab", "room"), (4, 10, 4), strict=True):
            line.open(token=token_of(name), environments=environments)
            line.init()
        url = status_url(server)
        spend_burst(lines[1], rate)
        with Stepping(lines) as stepping:

            def done() -> bool:
                first, second, other = stepping.steps
                waited = scraped(url).get(f'{PREFIX}throttled_seconds_total{{client="lab"}}', 0.0)
                return first + second >= 3 * rate and other > first + second and waited > 1

            wait_until(done, "lab has the steps of 3 s, and room, which has no quota, has more", 240, 0.1)
            (first, second, other), seconds = stepping.steps, stepping.seconds
        assert first + second <= rate * (seconds + BURST_SECONDS) + 4 + 10, (first, second, seconds)
        assert min(first, second) > 24, "both connections make progress"
        lab = lines[0]
        before = time.monotonic()
        lab.send(rlx.Ping(3))
        assert lab.expect(rlx.Pong).nonce == 3
        assert time.monotonic() - before < 20
        wait_until(
            lambda: "client lab (127.0.0.1) is throttled: about " in server.stderr, "the throttling is logged", 60
        )
        asked, allowed = re.findall(r"throttled: about (\d+) steps/s asked, (\d+) allowed", server.stderr)[0]
        assert int(allowed) == rate
        assert int(asked) > rate
        assert "client room" not in server.stderr.replace("of client room", "")
        for name, at_least in (("lab", first + second), ("room", other)):
            key = f'{PREFIX}steps_total{{client="{name}"}}'
            wait_until(lambda key=key, at_least=at_least: scraped(url)[key] >= at_least, "steps are counted", 60)  # type: ignore[misc]
        assert scraped(url)[f'{PREFIX}bytes_total{{client="room"}}'] > 8 * other, "rewards alone take 8 bytes a step"
        assert scraped(url)[f'{PREFIX}throttled_seconds_total{{client="room"}}'] == 0


@pytest.mark.slow
def test_byte_quota_is_enforced_by_reading_slowly(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """Scalars are not answered, so only the back-pressure of TCP slows their sender."""
    clients.write(lab={"bytes-per-second": 200_000})
    server, address = serve(clients_file=str(clients.path), heartbeat=0.5)
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        message_bytes = line.connection.send(rlx.Metrics([("height", 1.0)])) * 2000
        line.socket.setblocking(False)
        sent_bytes, pings, rest = 0, b"", b""
        (worker,) = server.children()
        until = time.monotonic() + 60

        def push(seconds: float) -> int:
            nonlocal rest, pings
            sent, until = 0, time.monotonic() + seconds
            while time.monotonic() < until:
                rest = rest or message_bytes
                with contextlib.suppress(BlockingIOError):
                    count = line.socket.send(rest)
                    sent, rest = sent + count, rest[count:]
                    continue
                with contextlib.suppress(BlockingIOError):
                    pings += line.socket.recv(65536)
                time.sleep(0.01)
            return sent

        while push(2.0) > 4 * 200_000 and time.monotonic() < until:
            pass  # until the buffers of both sides are full
        sent_bytes = push(12.0)
        assert sent_bytes / 12 < 1.2 * 200_000 + 65_536, "the system frees its buffers in large pieces"
        assert sent_bytes / 12 > 0.5 * 200_000
        assert pings, "the server sends heartbeats to a throttled client"
        assert worker.memory_info().rss - worker.parent().memory_info().rss < 80e6, "the worker does not queue messages"


def test_removed_client_is_disconnected_within_seconds(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """The worker waits for the client, steps, computes for a long time, or waits for the first init."""
    clients.write(lab={}, room={})
    server, address = serve(clients_file=str(clients.path), max_failed_handshakes=10_000, constants=SHORT_TIMES)
    with contextlib.ExitStack() as stack:
        waiting, stepping, busy, silent, room = (stack.enter_context(Line(address)) for _ in range(5))
        for line in (waiting, stepping, busy, silent):
            line.open(token=token_of("lab"))
        room.open(token=token_of("room"))
        for line in (waiting, stepping, busy, room):
            line.init()
        busy.send(rlx.Step(np.ones(1), busy.observation(WAIT)))
        ended = threading.Event()

        def step_forever() -> None:
            with contextlib.suppress(AssertionError):
                while True:
                    stepping.step()
            ended.set()

        thread = threading.Thread(target=step_forever)
        thread.start()
        clients.write(room={})
        for line in (waiting, busy, silent):
            error = line.expect(rlx.Error)
            assert (error.code, error.retryable) == (ErrorCode.UNAUTHENTICATED, False)
            assert "no longer valid" in error.message
            line.expect_end()
        assert ended.wait(60)
        thread.join(10)
        with Line(address) as line:
            assert refused(line, token=token_of("lab")).code is ErrorCode.UNAUTHENTICATED
        room.step()
        assert f"reloaded the file of clients {clients.path}: 1 clients" in server.stderr
        clients.write(room={}, lab={})
        wait_until(lambda: _is_admitted(address, "lab"), "the client is admitted again", 60)


def _is_admitted(address: str, name: str) -> bool:
    with Line(address) as line:
        line.send(make_hello(token=token_of(name)))
        return isinstance(line.receive(), rlx.Welcome)


def test_replaced_token_disconnects_clients_of_the_old_token(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={})
    server, address = serve(clients_file=str(clients.path), constants={"clients.accounts.CHECK_SECONDS": 600})
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        other = ClientsFile(clients.path.parent)
        other.write(other={})
        clients.write_text(other.path.read_text().replace('"other"', '"lab"'))
        server.send_signal(signal.SIGHUP)  # without waiting for the next check of the file
        assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED
    with Line(address) as line:
        line.open(token=token_of("other"))


def test_broken_clients_file_is_logged_and_the_old_one_kept(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """The errors of broken files are tested in test_clients_file.py."""
    clients.write(lab={"max-connections": 3})
    server, address = serve(clients_file=str(clients.path), constants=SHORT_TIMES)
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        clients.write_text("lab: {token-sha256: [")
        wait_until(lambda: "keeping the previous 1 clients" in server.stderr, "the error is logged", 60)
        assert "line 1" in server.stderr
        line.step()
        with Line(address) as second:
            second.open(token=token_of("lab"))
        clients.write()
        assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_new_quota_applies_to_open_connections(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={})
    server, address = serve(clients_file=str(clients.path), constants=SHORT_TIMES)
    with Line(address) as line:
        line.open(token=token_of("lab"), environments=4)
        line.init()
        fast = rate_of(line, 1.0)
        clients.write(lab={"steps-per-second": 20})
        wait_until(lambda: "reloaded the file of clients" in server.stderr, "the file is reloaded", 60)
        spend_burst(line, 20)
        slow = rate_of(line, 2.0)
        assert slow < 30 < fast


class SmallLine(Line):
    """A connection with small TCP buffers at both ends."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, int(port)))
        self.connection = rlx.ClientConnection()
        self.pings = 0


def test_stuck_client_is_logged_and_counted(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """One client does not read its answers, the other has sent only part of a message."""
    clients.write(lab={}, room={})
    server, address = serve(
        "--status-bind",
        "127.0.0.1:0",
        clients_file=str(clients.path),
        constants=SHORT_TIMES,
        max_environments=MANY,
    )
    with SmallLine(address) as not_reading, Line(address) as half:
        not_reading.open(token=token_of("lab"), environments=MANY)
        half.open(token=token_of("room"))
        not_reading.send(rlx.Init(not_reading.observation(0)))  # the answer exceeds the buffers of both ends
        half.init()
        message_bytes = half.connection.send(make_step(half.hello, observation=half.observation(0)))
        half.socket.sendall(message_bytes[:-1])
        pattern = r"client lab \(127\.0\.0\.1\) does not read its answers: stuck for \d+ s"
        wait_until(lambda: re.search(pattern, server.stderr), "the log names the client that does not read", 60)
        pattern = r"client room \(127\.0\.0\.1\) has sent part of a message: stuck for \d+ s"
        wait_until(
            lambda: re.search(pattern, server.stderr), "the log names the client that sent part of a message", 60
        )
        url = status_url(server)
        wait_until(
            lambda: scraped(url).get(f'{PREFIX}stuck{{client="room"}}') == 1, "the metrics count the stuck client", 60
        )
        half.socket.sendall(message_bytes[-1:])
        half.expect(rlx.Actions)
        wait_until(
            lambda: scraped(url).get(f'{PREFIX}stuck{{client="room"}}') == 0, "the client is not stuck any more", 60
        )
    assert server.stderr.count("client room (127.0.0.1) has sent") == 1, "the warning is logged once"


def test_killed_throttled_worker_does_not_block_other_workers(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={"steps-per-second": 1000})
    server, address = serve(clients_file=str(clients.path))
    for _ in range(5):
        with Line(address) as line:
            line.open(token=token_of("lab"))
            line.init()
            for worker in server.children():
                thread = threading.Thread(target=lambda: _step_until_closed(line))
                thread.start()
                time.sleep(0.02)
                with contextlib.suppress(Exception):
                    worker.kill()
                thread.join(60)
                assert not thread.is_alive()
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        for _ in range(10):
            line.step()


def _step_until_closed(line: Line) -> None:
    with contextlib.suppress(AssertionError, OSError):
        while True:
            line.step()
