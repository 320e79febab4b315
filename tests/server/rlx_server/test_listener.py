"""Who gets a process, who waits, and what the server's own process keeps to itself."""

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
from support.rlx_vector_talk import framed, varint

Server = tuple[Running, str]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the times of every server, which a first connection has come to and gone from."""
    folder = tmp_path_factory.mktemp("usual")
    with Processes(folder) as processes:
        server, address = start_offline_server(processes, folder)
        settled(server, address)
        yield server, address


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that waits for a hello for longer than any test."""
    folder = tmp_path_factory.mktemp("patient")
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
    """Closed with unread bytes, which TCP tells as a reset."""
    with contextlib.suppress(ConnectionResetError):
        line.expect_end()


def settled(server: Running, address: str) -> None:
    """A first connection has come and gone: what the server opens for itself is open."""
    with Line(address) as line:
        line.open()
        line.say(rlx.Bye())
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")
    wait_until(lambda: not psutil.Process(server.pid).children(), "the worker was buried")


def test_a_probe_costs_no_process(serve) -> None:  # type: ignore[no-untyped-def]
    """A load balancer connects, sees that somebody listens, and hangs up."""
    server, address = serve("--log-level", "DEBUG")
    settled(server, address)
    before = descriptors(server)
    for _ in range(20):
        Line(address).socket.close()
    with Line(address) as waiting, Line(address) as line:
        line.open()  # whoever came before was looked at by now
        assert len(server.children()) == 1
        assert waiting.connection.state is rlx.State.AWAIT_HELLO
        line.say(rlx.Bye())
        line.expect_end()
    wait_until(lambda: descriptors(server) == before, "every descriptor was given back")


def test_silence_and_unfinished_hellos_expire_without_a_process(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=1.0)
    with Line(address) as silent, Line(address) as line:
        line.socket.sendall(line.connection.send(make_hello())[:-1])
        silent.expect_end()
        expect_dropped(line)
        assert not server.children()


@pytest.mark.parametrize("said", [1, 4, 5, -1], ids=["byte", "length", "more", "all but one"])
def test_a_hello_that_breaks_off_is_given_up_at_once(patient: Server, said: int) -> None:
    _, address = patient
    with Line(address) as line:
        line.socket.sendall(line.connection.send(make_hello())[:said])
        line.socket.shutdown(socket.SHUT_WR)
        expect_dropped(line)


def test_a_hello_that_comes_byte_by_byte_is_heard(usual: Server) -> None:
    _, address = usual
    with Line(address) as line:
        for byte in line.connection.send(make_hello()):
            line.socket.sendall(bytes([byte]))
        line.expect(rlx.Welcome)
        assert line.init() == 0


def test_the_longest_hello_is_heard(usual: Server) -> None:
    """It is more than the kernel's buffer has room for at first."""
    _, address = usual
    with Line(address) as line:
        hello = rlx_pb2.ClientMessage.FromString(line.connection.send(make_hello())[4:]).SerializeToString()
        padding = rlx.HANDSHAKE_FRAME_BYTES - len(hello) - 5
        unknown = bytes([0xA2, 0x06]) + varint(padding)  # field 100, which is to be skipped
        line.socket.sendall(framed(hello + unknown + bytes(padding)))
        line.expect(rlx.Welcome)


def test_no_more_than_max_handshakes_are_under_way(serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gate = tmp_path / "closed"
    gate.touch()
    server, address = serve(max_handshakes=2, handshake_timeout=100, algorithm={"hold": str(gate)})
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(Line(address)) for _ in range(2)]
        for line in held:
            line.say(make_hello(action_space=rlx.Discrete(HELD)))
        wait_until(lambda: len(server.children()) == 2, "both have a process")
        waiting = [stack.enter_context(Line(address)) for _ in range(3)]
        for line in waiting:
            line.say(make_hello())
        waiting[0].socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting[0].hear()
        assert len(server.children()) == 2
        gate.unlink()
        for line in (*held, *waiting):  # one place is enough for one after the other: who was let in needs none
            line.socket.settimeout(20)
            line.expect(rlx.Welcome)
        assert len(server.children()) == 5


def test_lengths_that_no_hello_has_are_answered_after_every_hello(serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    gate = tmp_path / "closed"
    gate.touch()
    server, address = serve(max_handshakes=1, handshake_timeout=100, algorithm={"hold": str(gate)})
    settled(server, address)

    def held_open() -> int:
        return sum(1 for seen in psutil.Process(server.pid).net_connections("tcp") if seen.raddr)

    before = held_open()
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(Line(address))
        held.say(make_hello(action_space=rlx.Discrete(HELD)))
        wait_until(lambda: len(server.children()) == 1, "the only place is taken")
        (first,) = server.children()
        wrong = [stack.enter_context(Line(address)) for _ in range(5)]
        for line in wrong:
            line.socket.sendall(b"\xff\xff\xff\xff")
        late = stack.enter_context(Line(address))
        late.say(make_hello())
        wait_until(lambda: held_open() == before + 6, "the server has heard of all")
        gate.unlink()
        held.expect(rlx.Welcome)
        late.expect(rlx.Welcome)
        others = [child.pid for child in server.children() if child.pid != first.pid]
        made = min(others, key=lambda pid: (pid < first.pid, pid))  # numbers of processes begin anew at some time
        (connection,) = psutil.Process(made).net_connections("tcp")
        assert connection.raddr.port == late.socket.getsockname()[1], "the last to come was served first"
        for line in wrong:
            assert line.expect(rlx.Error).code is ErrorCode.FRAME_TOO_LARGE
            line.expect_end()
            line.socket.close()


def test_past_max_workers_a_client_is_told_when_to_come_again(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(max_workers=1)
    with Line(address) as first:
        first.open()
        with Line(address) as second:
            second.say(make_hello())
            error = second.expect(rlx.Error)
            assert error.code is ErrorCode.OVERLOADED
            assert error.retryable
            assert error.retry_after_seconds > 0
            assert "1 connections" in error.message
            second.expect_end()
        assert first.init() == 0
        first.say(rlx.Bye())
        first.expect_end()

    def served() -> bool:
        with Line(address) as line:
            line.say(make_hello())
            return isinstance(line.hear(), rlx.Welcome)

    wait_until(served, "there is room again")


def test_a_full_server_refuses_without_a_process(serve) -> None:  # type: ignore[no-untyped-def]
    """In the codec of each, whatever its hello is worth, and with one line in the log."""
    server, address = serve(max_workers=1)
    with Line(address) as first:
        first.open()
        before, workers = descriptors(server), server.children()
        for codec in ["protobuf", "json"] * 20:
            with Line(address, codec) as line:
                line.say(make_hello())
                assert "no room" in line.expect(rlx.Error).message
                line.expect_end()
        with Line(address) as line:
            line.socket.sendall(framed(b"{" * 60_000))
            assert b"OVERLOADED" in line.socket.recv(4096)
        assert server.children() == workers
        wait_until(lambda: descriptors(server) <= before, "every descriptor was given back")
        assert first.init() == 0
    assert server.stderr.count("refused a connection") == 1


def test_without_memory_nobody_is_let_in(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(memory_reserve=1e9)
    with Line(address) as line:
        line.say(make_hello())
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.OVERLOADED
        assert "MB" in error.message


def test_the_parent_keeps_no_connection_and_no_thread(usual: Server) -> None:
    server, address = usual
    wait_until(lambda: not psutil.Process(server.pid).children(), "nobody is left of the tests before")
    before = len(sockets_of(server.pid))
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(3)]
        for line in lines:
            line.open()
            assert line.init() == 0
        with_lines = before + len(lines)  # to each worker, by which it hears that its client is let in no more
        wait_until(lambda: len(sockets_of(server.pid)) == with_lines, "what was handed to a worker was closed")
        parent = psutil.Process(server.pid)
        assert [c.status for c in parent.net_connections("tcp")] == [psutil.CONN_LISTEN]
        assert parent.num_threads() == 1
        for child in server.children():
            assert [c.status for c in child.net_connections("tcp")] == [psutil.CONN_ESTABLISHED], "one, and no other's"


def test_connections_that_come_and_go_leave_nothing_behind(usual: Server) -> None:
    server, address = usual
    settled(server, address)
    before = descriptors(server)
    for _ in range(15):
        with Line(address) as line:
            line.open()
    wait_until(lambda: not psutil.Process(server.pid).children(), "the workers have ended and were buried")
    wait_until(lambda: descriptors(server) == before, "every descriptor was given back")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are set on Linux")
def test_silent_connections_that_use_up_all_descriptors_shut_nobody_out(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=300)
    settled(server, address)
    limit = descriptors(server) + 20
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Line(address)) for _ in range(60)]
        with Line(address) as line:
            line.open()
            assert line.init() == 0
        for early in silent[:10]:  # who waited longest made room
            early.expect_end()


def test_connections_that_say_a_byte_and_wait_cost_no_process_and_no_time(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=300, max_handshakes=2)
    parent = psutil.Process(server.pid)
    with contextlib.ExitStack() as stack:
        for said in (b"\0", b"\0\0\0", b"\0\0\0\x20", b"\0\0\xff\xff" + bytes(20_000)) * 5:
            stack.enter_context(Line(address)).socket.sendall(said)
        with Line(address) as line:
            line.open()
            assert len(server.children()) == 1
            before = sum(parent.cpu_times()[:2])
            for _ in range(20):
                assert line.init() == 0
                line.say(rlx.Reset(np.zeros(1)))
                line.expect(rlx.EpisodeReturns)
            line.socket.settimeout(1.0)
            with pytest.raises(TimeoutError):
                line.hear()
            assert sum(parent.cpu_times()[:2]) - before < 0.5, "the parent waits, and does not turn"
