"""Crowds of connections that do no good: silent, slow, half-closed, lying, never reading, coming and going."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relaax import rlx
from relaax.conformance.websocket import Masker, request
from relaax.server.rlx_server.listening.admission import EXTRA_PLACES, FREE_PLACES
from relaax.server.rlx_server.listening.children import MAX_CLOSING
from relaax.server.rlx_server.listening.listener import MAX_WAITING
from support.connection_floods import ConnectionFlood, NonReadingClients, RejectedClients, SlowHandshakes, connect_to
from support.fuzz_run import ALGORITHM
from support.fuzz_wire import honest_clients
from support.offline import start_offline_server
from support.processes import Processes, Running, wait_until
from support.resource_leaks import Resources, expect_clean_log, expect_no_leak, resources_of
from support.rlx_line import Line
from support.rlx_pair import make_hello
from support.service import started_service
from support.trainee import Training

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")

PATIENCE = 30.0  # seconds to an answer, beside a crowd and on a busy machine
HANDSHAKE_TIMEOUT = 300  # seconds: longer than any crowd stays
WAITING = 100  # connections that may wait to be read, instead of the listener's own 1024
COMER = Path(__file__).parents[1] / "support" / "idle_client.py"


class Served:
    """A server, what it held once it had served somebody, and its address."""

    def __init__(
        self, processes: Processes, folder: Path, constants: dict[str, float] | None = None, **settings: Any
    ) -> None:
        self.running: Running
        self.running, self.address = start_offline_server(
            processes,
            folder,
            algorithm={"path": str(ALGORITHM)},
            constants=constants,
            max_frame_megabytes=1,
            log_level="WARNING",
            memory_reserve=0,
            **{"handshake_timeout": HANDSHAKE_TIMEOUT, **settings},
        )
        for _ in range(5):
            with Line(self.address) as line:
                line.open()
                line.init()
                line.say(rlx.Bye())
                line.expect_end()
        self.before: Resources = resources_of(self.running)

    def expect_nothing_left(self) -> None:
        expect_no_leak(self.running, self.before)
        expect_clean_log(self.running)


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all: what one crowd left behind would spoil the next one's test as well."""
    folder = tmp_path_factory.mktemp("crowds")
    with Processes(folder) as processes:
        yield Served(processes, folder, {"listening.listener.MAX_WAITING": getattr(request, "param", WAITING)})


@pytest.fixture
def server(started: Served) -> Iterator[Served]:
    yield started
    started.expect_nothing_left()


as_many_as_ever = pytest.mark.parametrize("started", [MAX_WAITING], indirect=True, ids=["all"])


def hello() -> bytes:
    return rlx.ClientConnection().send(make_hello())


def expect_no_process(server: Served) -> None:
    """The honest clients have left, the crowd is still there."""
    # A worker made for one of the crowd would wait for its hello through HANDSHAKE_TIMEOUT, five times as long as here.
    wait_until(lambda: not server.running.children(), "nobody but honest clients had a process", 60)


CROWDS: dict[str, Callable[[], bytes]] = {
    "silent": lambda: b"",
    "a byte": lambda: b"\0",
    "a length and no more": lambda: b"\0\0\1\0",
    "a long length and a part": lambda: b"\0\0\xff\xff" + bytes(3000),
    "all but a byte of a hello": lambda: hello()[:-1],
    "all but a byte of a request": lambda: request()[:-1],
}


@pytest.mark.slow
@pytest.mark.parametrize("said", CROWDS.values(), ids=CROWDS)
def test_a_crowd_that_does_not_introduce_itself(server: Served, said: Callable[[], bytes]) -> None:
    """More of them than may wait: the longest waiting are dropped, and honest clients are served at once."""
    expect_room(server, WAITING, said())


@pytest.mark.slow
@as_many_as_ever
def test_the_oldest_of_1200_silent_connections_make_room(server: Served) -> None:
    expect_room(server, MAX_WAITING, b"")


def expect_room(server: Served, waiting: int, said: bytes) -> None:
    count = waiting + 176
    with ConnectionFlood(server.address, count, said) as crowd:
        with honest_clients(server.address) as honest:
            wait_until(lambda: all(guest.connections >= 2 for guest in honest), "honest clients come and go", 60)
        expect_no_process(server)
        wait_until(lambda: crowd.dropped() >= count - waiting, "those that waited longest made room")


@pytest.mark.slow
def test_a_crowd_that_says_a_byte_now_and_then(server: Served) -> None:
    word = hello()
    with ConnectionFlood(server.address, WAITING - 10, word[:1]) as crowd:
        with honest_clients(server.address) as honest:
            for index in range(1, len(word) - 1):
                crowd.send(word[index : index + 1])
            wait_until(lambda: all(guest.connections >= 2 for guest in honest), "honest clients come and go", 60)
        expect_no_process(server)


@pytest.mark.slow
def test_a_crowd_that_has_closed_its_half(server: Served) -> None:
    with ConnectionFlood(server.address, WAITING - 10, b"\0\0\0") as crowd, honest_clients(server.address) as honest:
        crowd.half_close()
        wait_until(lambda: crowd.dropped() == WAITING - 10, "all of them were dropped")
        wait_until(lambda: all(guest.connections >= 1 for guest in honest), "honest clients come and go", 60)


@pytest.mark.slow
def test_a_crowd_that_lies_about_lengths(server: Served) -> None:
    """Each is told, after everybody whose hello could be one."""
    lies = struct.pack(">I", 2**32 - 1) + b"x" * 100
    with ConnectionFlood(server.address, 12, lies) as crowd, honest_clients(server.address) as honest:
        wait_until(lambda: all(guest.connections >= 1 for guest in honest), "honest clients come and go", 60)
        wait_until(lambda: crowd.dropped() == 12, "each was answered", 120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(0, id="and no more"),
        pytest.param(400_000, id="and more than is read at once"),
    ],
)
def test_a_crowd_whose_frames_have_a_length_and_no_sense(
    processes: Processes, tmp_path: Path, more: int, short: bool
) -> None:
    """Whoever is refused and stays holds no place: with a second for each of the crowd nobody else would have one."""
    if short and not more:
        pytest.skip("--short has the crowd that sends more")
    server = Served(processes, tmp_path, max_handshakes=1)
    garbage = struct.pack(">I", 200) + b"\xff" * (200 + more)
    with RejectedClients(server.address, 64, garbage) as crowd, honest_clients(server.address) as honest:
        wait_until(lambda: all(guest.connections >= 2 for guest in honest), "honest clients come and go", 60)
        wait_until(lambda: crowd.refusals > 64, "the crowd comes again", 60)
        assert max(guest.longest for guest in honest) < PATIENCE
    server.expect_nothing_left()


@pytest.mark.slow
@as_many_as_ever
def test_a_crowd_that_says_hello_and_never_reads(server: Served) -> None:
    """What that costs those who train, and a newcomer: tests/benchmarks/deaf_crowd.py."""
    with NonReadingClients(server.address, 300) as crowd:
        wait_until(lambda: len(server.running.children()) >= FREE_PLACES, "places are taken", 60)
        with honest_clients(server.address) as honest:
            wait_until(lambda: all(guest.connections >= 2 for guest in honest), "honest clients come and go", 120)
            workers = len(server.running.children())
        assert workers <= FREE_PLACES + EXTRA_PLACES + MAX_CLOSING + len(honest) + 2  # two may be on their way
        wait_until(lambda: crowd.reconnects > 0, "the oldest of the crowd were ended", 60)
    wait_until(lambda: not server.running.children(), "nobody serves those that have left", 60)


@pytest.mark.slow
@pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])
def test_clients_that_never_read_their_answers(server: Served, websocket: bool) -> None:
    """A worker whose answers nobody takes waits, alone; its memory does not grow with what it is sent."""
    ping = rlx.ClientConnection()
    ping.send(make_hello())
    pings = ping.send(rlx.Ping(7)) * 20_000
    with honest_clients(server.address) as honest, contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(connect_to(server.address)) for _ in range(4)]
        for sock in deaf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(request() + Masker().mask(hello()) if websocket else hello())
        pings = Masker().mask(pings) if websocket else pings
        for sock in deaf:
            sock.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                for _ in range(50):  # until nobody takes any more
                    sock.sendall(pings)
        for worker in server.running.children():
            with contextlib.suppress(psutil.Error):
                assert worker.memory_full_info().uss < 100 * 2**20
        steps = [guest.steps for guest in honest]
        wait_until(lambda: all(g.steps > s + 50 for g, s in zip(honest, steps, strict=True)), "others are served", 60)


@pytest.mark.slow
def test_training_goes_on_beside_five_hundred_that_say_next_to_nothing(tmp_path: Path, short: bool) -> None:
    """Half of them say nothing, half a byte a second. What that costs: tests/benchmarks/hostile_connections.py."""
    with started_service(tmp_path) as service, contextlib.ExitStack() as stack:
        training = [Training(service.address) for _ in range(8)]
        try:
            for each in training:
                each.expect_more()
            stack.enter_context(SlowHandshakes(service.address, 500))
            for each in training:
                each.expect_more(100 if short else 300)
            newcomer = Training(service.address)
            training.append(newcomer)
            newcomer.expect_more()
            assert len(service.rlx_server.children()) == 9, "nobody else has a process"
        finally:
            for each in training:
                each.stop()
        expect_clean_log(service.rlx_server)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_some_hundreds_of_connections_come_and_go(server: Served, short: bool) -> None:
    """Clean, by a reset, in the middle of a word, and as a process that is killed."""
    with honest_clients(server.address) as honest:
        for number in range(25 if short else 600):
            _come_and_go(server.address, number)
        assert all(guest.connections > 0 for guest in honest)


def _come_and_go(address: str, number: int) -> None:
    way = number % 5
    if way == 4:
        with subprocess.Popen([sys.executable, str(COMER), address], stdout=subprocess.PIPE) as comer:
            assert comer.stdout is not None
            assert comer.stdout.readline() == b"acting\n"
            os.kill(comer.pid, signal.SIGKILL)
        return
    with Line(address, "json" if number % 2 else "protobuf") as line:
        line.open()
        line.init()
        if way == 0:
            line.say(rlx.Bye())
            line.expect_end()
        elif way == 1:
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        elif way == 2:
            line.socket.sendall(b"\0\0\0\x50ab")
        else:
            line.step()
