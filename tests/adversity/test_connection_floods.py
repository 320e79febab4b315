"""Floods of connections that are silent, slow, half-closed, invalid, not reading, or short."""

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

PATIENCE = 30.0  # seconds to an answer, during a flood and on a busy machine
HANDSHAKE_TIMEOUT = 300  # seconds; longer than any flood
WAITING = 100  # replaces MAX_WAITING, the number of connections that may wait to be read
IDLE_CLIENT = Path(__file__).parents[1] / "support" / "idle_client.py"


class Served:
    """A server, its address, and its resources after it has served a few clients."""

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
                line.send(rlx.Bye())
                line.expect_end()
        self.before: Resources = resources_of(self.running)

    def expect_no_leak_or_error(self) -> None:
        expect_no_leak(self.running, self.before)
        expect_clean_log(self.running)


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests. Resources leaked by one flood would fail the next tests too."""
    folder = tmp_path_factory.mktemp("floods")
    with Processes(folder) as processes:
        yield Served(processes, folder, {"listening.listener.MAX_WAITING": getattr(request, "param", WAITING)})


@pytest.fixture
def server(started: Served) -> Iterator[Served]:
    yield started
    started.expect_no_leak_or_error()


with_default_limit = pytest.mark.parametrize("started", [MAX_WAITING], indirect=True, ids=["all"])


def hello() -> bytes:
    return rlx.ClientConnection().send(make_hello())


def expect_no_worker(server: Served) -> None:
    """Wait until no worker is left. The honest clients have disconnected, the flood has not."""
    # A worker of the flood would wait for its hello for HANDSHAKE_TIMEOUT, five times as long as the timeout here.
    wait_until(lambda: not server.running.children(), "only honest clients had a worker", 60)


FIRST_BYTES: dict[str, Callable[[], bytes]] = {
    "silent": lambda: b"",
    "one byte": lambda: b"\0",
    "a length only": lambda: b"\0\0\1\0",
    "a long length and a part of the frame": lambda: b"\0\0\xff\xff" + bytes(3000),
    "all but a byte of a hello": lambda: hello()[:-1],
    "all but a byte of a request": lambda: request()[:-1],
}


@pytest.mark.slow
@pytest.mark.parametrize("first_bytes", FIRST_BYTES.values(), ids=FIRST_BYTES)
def test_honest_clients_are_served_beside_unfinished_hellos(server: Served, first_bytes: Callable[[], bytes]) -> None:
    """Beyond the limit, the oldest waiting connections are dropped, and honest clients are served at once."""
    expect_oldest_dropped(server, WAITING, first_bytes())


@pytest.mark.slow
@with_default_limit
def test_oldest_of_1200_silent_connections_are_dropped(server: Served) -> None:
    expect_oldest_dropped(server, MAX_WAITING, b"")


def expect_oldest_dropped(server: Served, waiting: int, first_bytes: bytes) -> None:
    count = waiting + 176
    with ConnectionFlood(server.address, count, first_bytes) as flood:
        with honest_clients(server.address) as honest:
            wait_until(lambda: all(client.connections >= 2 for client in honest), "honest clients reconnect", 60)
        expect_no_worker(server)
        wait_until(lambda: flood.dropped() >= count - waiting, "the connections that waited longest are dropped")


@pytest.mark.slow
def test_honest_clients_are_served_beside_slow_hellos(server: Served) -> None:
    data = hello()
    with ConnectionFlood(server.address, WAITING - 10, data[:1]) as flood:
        with honest_clients(server.address) as honest:
            for index in range(1, len(data) - 1):
                flood.send(data[index : index + 1])
            wait_until(lambda: all(client.connections >= 2 for client in honest), "honest clients reconnect", 60)
        expect_no_worker(server)


@pytest.mark.slow
def test_half_closed_connections_are_dropped(server: Served) -> None:
    with ConnectionFlood(server.address, WAITING - 10, b"\0\0\0") as flood, honest_clients(server.address) as honest:
        flood.half_close()
        wait_until(lambda: flood.dropped() == WAITING - 10, "all half-closed connections are dropped")
        wait_until(lambda: all(client.connections >= 1 for client in honest), "honest clients reconnect", 60)


@pytest.mark.slow
def test_frames_with_false_lengths_are_refused(server: Served) -> None:
    """Each connection is refused, but connections that may send a valid hello are served first."""
    frames = struct.pack(">I", 2**32 - 1) + b"x" * 100
    with ConnectionFlood(server.address, 12, frames) as flood, honest_clients(server.address) as honest:
        wait_until(lambda: all(client.connections >= 1 for client in honest), "honest clients reconnect", 60)
        wait_until(lambda: flood.dropped() == 12, "each was refused", 120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(0, id="one frame"),
        pytest.param(400_000, id="more than is read at once"),
    ],
)
def test_refused_clients_hold_no_handshake_place(processes: Processes, tmp_path: Path, more: int, short: bool) -> None:
    """A refused client that keeps its connection open holds no handshake place, although there is only one."""
    if short and not more:
        pytest.skip("--short has the case with more data")
    server = Served(processes, tmp_path, max_handshakes=1)
    garbage = struct.pack(">I", 200) + b"\xff" * (200 + more)
    with RejectedClients(server.address, 64, garbage) as flood, honest_clients(server.address) as honest:
        wait_until(lambda: all(client.connections >= 2 for client in honest), "honest clients reconnect", 60)
        wait_until(lambda: flood.refusals > 64, "refused clients connect again", 60)
        assert max(client.longest for client in honest) < PATIENCE
    server.expect_no_leak_or_error()


@pytest.mark.slow
@with_default_limit
def test_non_reading_clients_do_not_block_honest_ones(server: Served) -> None:
    """The cost for training clients and for a new client is measured by tests/benchmarks/unread_connections.py."""
    with NonReadingClients(server.address, 300) as flood:
        wait_until(lambda: len(server.running.children()) >= FREE_PLACES, "all free places are occupied", 60)
        with honest_clients(server.address) as honest:
            wait_until(lambda: all(client.connections >= 2 for client in honest), "honest clients reconnect", 120)
            workers = len(server.running.children())
        assert workers <= FREE_PLACES + EXTRA_PLACES + MAX_CLOSING + len(honest) + 2  # two may be starting
        wait_until(lambda: flood.reconnects > 0, "the oldest connections of the flood are closed", 60)
    wait_until(lambda: not server.running.children(), "closed connections have no worker", 60)


@pytest.mark.slow
@pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])
def test_unread_answers_do_not_grow_worker_memory(server: Served, websocket: bool) -> None:
    """A worker whose answers are not read waits. Its memory does not grow, and other clients are served."""
    ping = rlx.ClientConnection()
    ping.send(make_hello())
    pings = ping.send(rlx.Ping(7)) * 20_000
    with honest_clients(server.address) as honest, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect_to(server.address)) for _ in range(4)]
        for sock in clients:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(request() + Masker().mask(hello()) if websocket else hello())
        pings = Masker().mask(pings) if websocket else pings
        for sock in clients:
            sock.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                for _ in range(50):  # until the buffers are full
                    sock.sendall(pings)
        for worker in server.running.children():
            with contextlib.suppress(psutil.Error):
                assert worker.memory_full_info().uss < 100 * 2**20
        steps = [client.steps for client in honest]
        wait_until(
            lambda: all(g.steps > s + 50 for g, s in zip(honest, steps, strict=True)), "honest clients are served", 60
        )


@pytest.mark.slow
def test_training_continues_beside_500_slow_handshakes(tmp_path: Path, short: bool) -> None:
    """Half send nothing, and half one byte per second. tests/benchmarks/hostile_connections.py measures the cost."""
    with started_service(tmp_path) as service, contextlib.ExitStack() as stack:
        training = [Training(service.address) for _ in range(8)]
        try:
            for each in training:
                each.expect_more()
            stack.enter_context(SlowHandshakes(service.address, 500))
            for each in training:
                each.expect_more(100 if short else 300)
            new_client = Training(service.address)
            training.append(new_client)
            new_client.expect_more()
            assert len(service.rlx_server.children()) == 9, "only the honest clients have a worker"
        finally:
            for each in training:
                each.stop()
        expect_clean_log(service.rlx_server)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hundreds_of_ended_connections_leave_no_resources(server: Served, short: bool) -> None:
    """Connections end with a bye, a reset, a partial frame, a close, or a killed client process."""
    with honest_clients(server.address) as honest:
        for number in range(25 if short else 600):
            _connect_and_end(server.address, number)
        assert all(client.connections > 0 for client in honest)


def _connect_and_end(address: str, number: int) -> None:
    ending = number % 5
    if ending == 4:
        with subprocess.Popen([sys.executable, str(IDLE_CLIENT), address], stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"acting\n"
            os.kill(client.pid, signal.SIGKILL)
        return
    with Line(address, "json" if number % 2 else "protobuf") as line:
        line.open()
        line.init()
        if ending == 0:
            line.send(rlx.Bye())
            line.expect_end()
        elif ending == 1:
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        elif ending == 2:
            line.socket.sendall(b"\0\0\0\x50ab")
        else:
            line.step()
