"""Clients with names: who gets in with what, who is slowed down, and who is put out, over real sockets."""

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
SOON = {
    "clients.accounts.CHECK_SECONDS": 0.2,
    "clients.claims.CHECK_SECONDS": 0.2,
    "clients.claims.STUCK_SECONDS": 1.0,
    "clients.claims.WINDOW_SECONDS": 1.0,
    "listening.listener.TICK_SECONDS": 0.1,
}
"""Times of the server in these tests."""


@pytest.fixture
def clients(tmp_path: Path) -> ClientsFile:
    return ClientsFile(tmp_path)


def refused(line: Line, **fields: object) -> rlx.Error:
    line.say(make_hello(**fields))  # type: ignore[arg-type]
    error: rlx.Error = line.expect(rlx.Error)
    line.expect_end()
    return error


@pytest.mark.parametrize("worker_start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_name_has_a_token_of_its_own(serve, clients: ClientsFile, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
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
        wait_until(lambda name=name: f"of client {name} at h: actors [0]" in server.stderr, "the log names it")  # type: ignore[misc]
    with Line(address) as line:
        line.open(token=OWN_TOKEN)
    with Line(address) as line:
        error = refused(line, token=token_of("stranger"))
        assert (error.code, error.retryable) == (ErrorCode.UNAUTHENTICATED, False)
    with Line(address) as line:
        assert "the client sent none" in refused(line).message
    assert token_of("lab") not in server.stderr


def test_without_a_common_token_names_alone_get_in(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={})
    _, address = serve("--bind", "0.0.0.0:0", clients_file=str(clients.path))  # as with a token it may
    with Line(f"127.0.0.1:{address.rpartition(':')[2]}") as line:
        assert refused(line).code is ErrorCode.UNAUTHENTICATED


def test_connections_and_environments_of_a_name_are_bounded(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={"max-connections": 2, "max-environments": 10}, room={})
    server, address = serve("--status-bind", "127.0.0.1:0", clients_file=str(clients.path))
    lab = token_of("lab")
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(4)]
        error = refused(lines[0], token=lab, environments=11)
        assert (error.code, error.retryable) == (ErrorCode.LIMIT_EXCEEDED, False), "alone it is too many"
        assert all(word in error.message for word in ("client lab", "11", "10", "max-environments"))
        lines[1].open(token=lab, environments=7)
        lines[1].init()
        error = refused(lines[2], token=lab, environments=4)
        assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True), "others may leave"
        assert error.retry_after_seconds > 0
        lines[3].open(token=lab, environments=3)
        with Line(address) as one_more:
            error = refused(one_more, token=lab, environments=1)
            assert (error.code, error.retryable) == (ErrorCode.OVERLOADED, True)
        with Line(address) as room:
            room.open(token=token_of("room"), environments=100)
            room.init()
            url = status_url(server)
            wait_until(lambda: scraped(url).get(f'{PREFIX}environments{{client="room"}}') == 100, "it is told", 60)
            values = scraped(url)
        assert values[f'{PREFIX}connections{{client="lab"}}'] == 2
        assert values[f'{PREFIX}environments{{client="lab"}}'] == 10
        assert values[f'{PREFIX}refusals_total{{client="lab"}}'] == 3
        assert values[f'{PREFIX}refusals_total{{client="room"}}'] == 0
        lines[1].say(rlx.Bye())
        lines[1].expect_end()
        came: list[Line] = []

        def let_in() -> bool:
            line = stack.enter_context(Line(address))
            line.say(make_hello(token=lab, environments=7))
            came.append(line)
            return isinstance(line.hear(), rlx.Welcome)

        wait_until(let_in, "what the one had that has left is the next one's", 60)


def test_environments_of_a_connection_and_of_an_address_are_bounded(serve) -> None:  # type: ignore[no-untyped-def]
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
    assert "actors [0-9]" in server.stderr, "in short"
    assert server.stderr.count("refused the claim of unnamed client (127.0.0.1)") == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_environments_that_nobody_steps_make_room_for_those_of_others(serve) -> None:  # type: ignore[no-untyped-def]
    """A crowd that says hello and never reads its welcome holds what its address may have, but not for long."""
    _, address = serve(max_environments=10, max_environments_per_address=40)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(Line(address)) for _ in range(4)]
        for line in crowd:
            line.say(make_hello(environments=10))
        tries = 0

        def let_in() -> bool:
            nonlocal tries
            tries += 1
            line = stack.enter_context(Line(address))
            line.say(make_hello(environments=10))
            if isinstance(line.hear(), rlx.Welcome):
                line.init()
                return True
            return False

        wait_until(let_in, "an honest client is let in", 60, 0.2)
        wait_until(let_in, "and another", 60, 0.2)
        assert tries > 2, "this test proves nothing otherwise"


def rate_of(line: Line, seconds: float) -> float:
    """Environment steps a second of a connection that asks for as much as it can."""
    began, steps = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        line.step()
        steps += line.hello.environments
    return steps / elapsed


class Stepping:
    """Connections that ask for as much as they can, side by side, until the block ends."""

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
        """Environment steps of each so far."""
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
    """What it may have saved up is gone."""
    for _ in range(2 + int(2 * rate * BURST_SECONDS / line.hello.environments)):
        line.step()


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_connections_of_one_name_share_its_steps_and_another_name_is_not_slowed(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    rate = 80
    clients.write(lab={"steps-per-second": rate}, room={})
    server, address = serve("--status-bind", "127.0.0.1:0", clients_file=str(clients.path), constants=SOON)
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

            wait_until(done, "lab has the steps of 3 s, and room, without a quota, has more", 240, 0.1)
            (first, second, other), seconds = stepping.steps, stepping.seconds
        assert first + second <= rate * (seconds + BURST_SECONDS) + 4 + 10, (first, second, seconds)
        assert min(first, second) > 24, "each has its turn"
        lab = lines[0]
        before = time.monotonic()
        lab.say(rlx.Ping(3))
        assert lab.expect(rlx.Pong).nonce == 3
        assert time.monotonic() - before < 20
        wait_until(lambda: "client lab (127.0.0.1) is throttled: about " in server.stderr, "the log says so", 60)
        asked, allowed = re.findall(r"throttled: about (\d+) steps/s asked, (\d+) allowed", server.stderr)[0]
        assert int(allowed) == rate
        assert int(asked) > rate
        assert "client room" not in server.stderr.replace("of client room", "")
        for name, least in (("lab", first + second), ("room", other)):
            key = f'{PREFIX}steps_total{{client="{name}"}}'
            wait_until(lambda key=key, least=least: scraped(url)[key] >= least, "and the metrics", 60)  # type: ignore[misc]
        assert scraped(url)[f'{PREFIX}bytes_total{{client="room"}}'] > 8 * other, "rewards alone take so much"
        assert scraped(url)[f'{PREFIX}throttled_seconds_total{{client="room"}}'] == 0


@pytest.mark.slow
def test_bytes_of_a_name_are_bounded_by_reading_slowly(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """Scalars are not answered: nothing but the network's own back-pressure holds up whoever sends them."""
    clients.write(lab={"bytes-per-second": 200_000})
    server, address = serve(clients_file=str(clients.path), heartbeat=0.5)
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        word = line.connection.send(rlx.Metrics([("height", 1.0)])) * 2000
        line.socket.setblocking(False)
        said, pings, rest = 0, b"", b""
        (worker,) = server.children()
        until = time.monotonic() + 60

        def push(seconds: float) -> int:
            nonlocal rest, pings
            sent, until = 0, time.monotonic() + seconds
            while time.monotonic() < until:
                rest = rest or word
                with contextlib.suppress(BlockingIOError):
                    count = line.socket.send(rest)
                    sent, rest = sent + count, rest[count:]
                    continue
                with contextlib.suppress(BlockingIOError):
                    pings += line.socket.recv(65536)
                time.sleep(0.01)
            return sent

        while push(2.0) > 4 * 200_000 and time.monotonic() < until:
            pass  # buffers of both sides fill first
        said = push(12.0)
        assert said / 12 < 1.2 * 200_000 + 65_536, "buffers of the system give back what they take in large pieces"
        assert said / 12 > 0.5 * 200_000
        assert pings, "the client hears that the server is there"
        assert worker.memory_info().rss - worker.parent().memory_info().rss < 80e6, "nothing piles up"


def test_a_name_that_is_taken_out_is_put_out_within_seconds(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """Whatever its worker does: waits for the client, computes for long, or has yet to hear an init."""
    clients.write(lab={}, room={})
    server, address = serve(clients_file=str(clients.path), max_failed_handshakes=10_000, constants=SOON)
    with contextlib.ExitStack() as stack:
        waiting, stepping, busy, silent, room = (stack.enter_context(Line(address)) for _ in range(5))
        for line in (waiting, stepping, busy, silent):
            line.open(token=token_of("lab"))
        room.open(token=token_of("room"))
        for line in (waiting, stepping, busy, room):
            line.init()
        busy.say(rlx.Step(np.ones(1), busy.observation(WAIT)))
        ended = threading.Event()

        def step_on() -> None:
            with contextlib.suppress(AssertionError):
                while True:
                    stepping.step()
            ended.set()

        thread = threading.Thread(target=step_on)
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
        wait_until(lambda: _lets_in(address, "lab"), "it is let in again", 60)


def _lets_in(address: str, name: str) -> bool:
    with Line(address) as line:
        line.say(make_hello(token=token_of(name)))
        return isinstance(line.hear(), rlx.Welcome)


def test_another_token_of_a_name_ends_what_came_with_the_old_one(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={})
    server, address = serve(clients_file=str(clients.path), constants={"clients.accounts.CHECK_SECONDS": 600})
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        other = ClientsFile(clients.path.parent)
        other.write(other={})
        clients.write_text(other.path.read_text().replace('"other"', '"lab"'))
        server.send_signal(signal.SIGHUP)  # which nobody has to wait for
        assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED
    with Line(address) as line:
        line.open(token=token_of("other"))


def test_a_broken_file_changes_nothing_but_the_log(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """Which files are refused, and in which words: test_clients_file.py."""
    clients.write(lab={"max-connections": 3})
    server, address = serve(clients_file=str(clients.path), constants=SOON)
    with Line(address) as line:
        line.open(token=token_of("lab"))
        line.init()
        clients.write_text("lab: {token-sha256: [")
        wait_until(lambda: "keeping the previous 1 clients" in server.stderr, "the log says so", 60)
        assert "line 1" in server.stderr
        line.step()
        with Line(address) as second:
            second.open(token=token_of("lab"))
        clients.write()
        assert line.expect(rlx.Error).code is ErrorCode.UNAUTHENTICATED


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_a_new_quota_holds_for_connections_that_are_there(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={})
    server, address = serve(clients_file=str(clients.path), constants=SOON)
    with Line(address) as line:
        line.open(token=token_of("lab"), environments=4)
        line.init()
        fast = rate_of(line, 1.0)
        clients.write(lab={"steps-per-second": 20})
        wait_until(lambda: "was read again" in server.stderr, "the file was read", 60)
        spend_burst(line, 20)
        slow = rate_of(line, 2.0)
        assert slow < 30 < fast


class SmallLine(Line):
    """A connection for which both systems buffer little."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, int(port)))
        self.connection = rlx.ClientConnection()
        self.pings = 0


def test_who_is_stuck_is_named(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    """One does not read its answers, another has left a message half said."""
    clients.write(lab={}, room={})
    server, address = serve(
        "--status-bind",
        "127.0.0.1:0",
        clients_file=str(clients.path),
        constants=SOON,
        max_environments=MANY,
    )
    with SmallLine(address) as deaf, Line(address) as half:
        deaf.open(token=token_of("lab"), environments=MANY)
        half.open(token=token_of("room"))
        deaf.say(rlx.Init(deaf.observation(0)))  # its answer is more than both systems buffer
        half.init()
        word = half.connection.send(make_step(half.hello, observation=half.observation(0)))
        half.socket.sendall(word[:-1])
        pattern = r"client lab \(127\.0\.0\.1\) does not read its answers, for \d+ s by now"
        wait_until(lambda: re.search(pattern, server.stderr), "the log names who does not read", 60)
        pattern = r"client room \(127\.0\.0\.1\) has sent part of a message, for \d+ s by now"
        wait_until(lambda: re.search(pattern, server.stderr), "the log names who does not go on", 60)
        url = status_url(server)
        wait_until(lambda: scraped(url).get(f'{PREFIX}stuck{{client="room"}}') == 1, "metrics count it", 60)
        half.socket.sendall(word[-1:])
        half.expect(rlx.Actions)
        wait_until(lambda: scraped(url).get(f'{PREFIX}stuck{{client="room"}}') == 0, "it goes on", 60)
    assert server.stderr.count("client room (127.0.0.1) has sent") == 1, "not every second"


def test_a_throttled_worker_that_is_killed_holds_up_nobody(serve, clients: ClientsFile) -> None:  # type: ignore[no-untyped-def]
    clients.write(lab={"steps-per-second": 1000})
    server, address = serve(clients_file=str(clients.path))
    for _ in range(5):
        with Line(address) as line:
            line.open(token=token_of("lab"))
            line.init()
            for worker in server.children():
                thread = threading.Thread(target=lambda: _until_closed(line))
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


def _until_closed(line: Line) -> None:
    with contextlib.suppress(AssertionError, OSError):
        while True:
            line.step()
