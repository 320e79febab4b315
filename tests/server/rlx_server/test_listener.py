"""Tests of the listener: when it starts a worker, makes a client wait or refuses it, and what it keeps open."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from relaax import rlx
from relaax.rlx import ErrorCode, rlx_pb2
from support.offline import start_offline_server
from support.offline_algorithm import HELD
from support.processes import Processes, Running, wait_until
from support.resource_leaks import descriptors
from support.rlx_line import Line
from support.rlx_pair import make_hello
from support.rlx_vector_recorder import framed, varint

Server = tuple[Running, str]


@pytest.fixture(scope="module")
def default_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server with default timeouts and serve one connection."""
    folder = tmp_path_factory.mktemp("default")
    with Processes(folder) as processes:
        server, address = start_offline_server(processes, folder)
        serve_once(server, address)
        yield server, address


@pytest.fixture(scope="module")
def long_timeout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server whose timeout for a hello is longer than any test."""
    folder = tmp_path_factory.mktemp("long-timeout")
    with Processes(folder) as processes:
        yield start_offline_server(processes, folder, handshake_timeout=300)


def sockets_of(pid: int) -> list[Path]:
    sockets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if link.readlink().name.startswith("socket:"):
                sockets.append(link)
    return sockets


def expect_dropped(line: Line) -> None:
    """Expect the end of the connection; the server closes with unread bytes, so TCP may report a reset."""
    with contextlib.suppress(ConnectionResetError):
        line.expect_end()


def serve_once(server: Running, address: str) -> None:
    """Serve and end one connection, so that the server has opened its own descriptors."""
    with Line(address) as line:
        line.open()
        line.send(rlx.Bye())
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")
    wait_until(lambda: not psutil.Process(server.pid).children(), "the worker is reaped")


def test_connection_without_bytes_starts_no_worker(serve) -> None:  # type: ignore[no-untyped-def]
    """A health check of a load balancer connects and closes without sending a byte."""
    server, address = serve("--log-level", "DEBUG")
    serve_once(server, address)
    before = descriptors(server)
    for _ in range(20):
        Line(address).socket.close()
    with Line(address) as waiting, Line(address) as line:
        line.open()  # all earlier connections have been checked
        assert len(server.children()) == 1
        assert waiting.connection.state is rlx.State.AWAIT_HELLO
        line.send(rlx.Bye())
        line.expect_end()
    wait_until(lambda: descriptors(server) == before, "every descriptor is closed")


def test_silent_and_partial_hellos_expire_without_a_worker(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=1.0)
    with Line(address) as silent, Line(address) as line:
        line.socket.sendall(line.connection.send(make_hello())[:-1])
        silent.expect_end()
        expect_dropped(line)
        assert not server.children()


@pytest.mark.parametrize("end", [1, 4, 5, -1], ids=["byte", "length", "more", "all but one"])
def test_half_closed_partial_hello_is_dropped_at_once(long_timeout: Server, end: int) -> None:
    _, address = long_timeout
    with Line(address) as line:
        line.socket.sendall(line.connection.send(make_hello())[:end])
        line.socket.shutdown(socket.SHUT_WR)
        expect_dropped(line)


def test_hello_sent_byte_by_byte_is_accepted(default_server: Server) -> None:
    _, address = default_server
    with Line(address) as line:
        for byte in line.connection.send(make_hello()):
            line.socket.sendall(bytes([byte]))
        line.expect(rlx.Welcome)
        assert line.init() == 0


def test_longest_allowed_hello_is_accepted(default_server: Server) -> None:
    """It exceeds the initial size of the kernel's receive buffer."""
    _, address = default_server
    with Line(address) as line:
        hello = rlx_pb2.ClientMessage.FromString(line.connection.send(make_hello())[4:]).SerializeToString()
        padding = rlx.HANDSHAKE_FRAME_BYTES - len(hello) - 5
        unknown = bytes([0xA2, 0x06]) + varint(padding)  # field 100, which a server skips
        line.socket.sendall(framed(hello + unknown + bytes(padding)))
        line.expect(rlx.Welcome)


def test_handshakes_past_max_handshakes_wait(serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gate = tmp_path / "closed"
    gate.touch()
    server, address = serve(max_handshakes=2, handshake_timeout=100, algorithm={"hold": str(gate)})
    with contextlib.ExitStack() as stack:
        held_lines = [stack.enter_context(Line(address)) for _ in range(2)]
        for line in held_lines:
            line.send(make_hello(action_space=rlx.Discrete(HELD)))
        wait_until(lambda: len(server.children()) == 2, "both have a worker")
        waiting = [stack.enter_context(Line(address)) for _ in range(3)]
        for line in waiting:
            line.send(make_hello())
        waiting[0].socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting[0].receive()
        assert len(server.children()) == 2
        gate.unlink()
        for line in (*held_lines, *waiting):  # an admitted client frees its place for the next one
            line.socket.settimeout(20)
            line.expect(rlx.Welcome)
        assert len(server.children()) == 5


def test_invalid_lengths_are_answered_after_all_hellos(serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gate = tmp_path / "closed"
    gate.touch()
    server, address = serve(max_handshakes=1, handshake_timeout=100, algorithm={"hold": str(gate)})
    serve_once(server, address)

    def open_connections() -> int:
        return sum(1 for seen in psutil.Process(server.pid).net_connections("tcp") if seen.raddr)

    before = open_connections()
    with contextlib.ExitStack() as stack:
        occupying = stack.enter_context(Line(address))
        occupying.send(make_hello(action_space=rlx.Discrete(HELD)))
        wait_until(lambda: len(server.children()) == 1, "the only place is occupied")
        (first,) = server.children()
        wrong = [stack.enter_context(Line(address)) for _ in range(5)]
        for line in wrong:
            line.socket.sendall(b"\xff\xff\xff\xff")
        last = stack.enter_context(Line(address))
        last.send(make_hello())
        wait_until(lambda: open_connections() == before + 6, "the server has accepted all connections")
        gate.unlink()
        occupying.expect(rlx.Welcome)
        last.expect(rlx.Welcome)
        others = [child.pid for child in server.children() if child.pid != first.pid]
        second_pid = min(others, key=lambda pid: (pid < first.pid, pid))  # process ids may wrap around
        (connection,) = psutil.Process(second_pid).net_connections("tcp")
        assert connection.raddr.port == last.socket.getsockname()[1], "the last connection is served first"
        for line in wrong:
            assert line.expect(rlx.Error).code is ErrorCode.FRAME_TOO_LARGE
            line.expect_end()
            line.socket.close()


def test_client_past_max_workers_is_refused_with_retry_time(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(max_workers=1)
    with Line(address) as first:
        first.open()
        with Line(address) as second:
            second.send(make_hello())
            error = second.expect(rlx.Error)
            assert error.code is ErrorCode.OVERLOADED
            assert error.retryable
            assert error.retry_after_seconds > 0
            assert "1 connections" in error.message
            second.expect_end()
        assert first.init() == 0
        first.send(rlx.Bye())
        first.expect_end()

    def served() -> bool:
        with Line(address) as line:
            line.send(make_hello())
            return isinstance(line.receive(), rlx.Welcome)

    wait_until(served, "a new client is admitted")


def test_full_server_refuses_without_starting_a_worker(serve) -> None:  # type: ignore[no-untyped-def]
    """The refusal uses the codec of the client, needs no valid hello, and is logged once."""
    server, address = serve(max_workers=1)
    with Line(address) as first:
        first.open()
        before, workers = descriptors(server), server.children()
        for codec in ["protobuf", "json"] * 20:
            with Line(address, codec) as line:
                line.send(make_hello())
                assert "no room" in line.expect(rlx.Error).message
                line.expect_end()
        with Line(address) as line:
            line.socket.sendall(framed(b"{" * 60_000))
            assert b"OVERLOADED" in line.socket.recv(4096)
        assert server.children() == workers
        wait_until(lambda: descriptors(server) <= before, "every descriptor is closed")
        assert first.init() == 0
    assert server.stderr.count("refused a connection") == 1


def test_connection_without_enough_memory_is_refused(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(memory_reserve=1e9)
    with Line(address) as line:
        line.send(make_hello())
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.OVERLOADED
        assert "MB" in error.message


def test_server_process_keeps_no_client_socket_and_one_thread(default_server: Server) -> None:
    server, address = default_server
    wait_until(lambda: not psutil.Process(server.pid).children(), "the workers of earlier tests have ended")
    before = len(sockets_of(server.pid))
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(3)]
        for line in lines:
            line.open()
            assert line.init() == 0
        expected = before + len(lines)  # one socket for the reports of each worker
        wait_until(lambda: len(sockets_of(server.pid)) == expected, "the sockets of the clients are closed")
        parent = psutil.Process(server.pid)
        assert [c.status for c in parent.net_connections("tcp")] == [psutil.CONN_LISTEN]
        assert parent.num_threads() == 1
        for child in server.children():
            assert [c.status for c in child.net_connections("tcp")] == [psutil.CONN_ESTABLISHED], (
                "a worker has only its own connection"
            )


def test_ended_connections_leave_no_process_and_no_descriptor(default_server: Server) -> None:
    server, address = default_server
    serve_once(server, address)
    before = descriptors(server)
    for _ in range(15):
        with Line(address) as line:
            line.open()
    wait_until(lambda: not psutil.Process(server.pid).children(), "the workers have ended and are reaped")
    wait_until(lambda: descriptors(server) == before, "every descriptor is closed")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux sets the limits of another process")
def test_descriptors_used_by_silent_clients_do_not_block_others(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=300)
    serve_once(server, address)
    limit = descriptors(server) + 20
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Line(address)) for _ in range(60)]
        with Line(address) as line:
            line.open()
            assert line.init() == 0
        for early in silent[:10]:  # the oldest connections are dropped
            early.expect_end()


def test_partial_hellos_cost_no_worker_and_no_processor_time(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=300, max_handshakes=2)
    parent = psutil.Process(server.pid)
    with contextlib.ExitStack() as stack:
        for data in (b"\0", b"\0\0\0", b"\0\0\0\x20", b"\0\0\xff\xff" + bytes(20_000)) * 5:
            stack.enter_context(Line(address)).socket.sendall(data)
        with Line(address) as line:
            line.open()
            assert len(server.children()) == 1
            before = sum(parent.cpu_times()[:2])
            for _ in range(20):
                assert line.init() == 0
                line.send(rlx.Reset(np.zeros(1)))
                line.expect(rlx.EpisodeReturns)
            line.socket.settimeout(1.0)
            with pytest.raises(TimeoutError):
                line.receive()
            assert sum(parent.cpu_times()[:2]) - before < 0.5, "the server waits without polling"
