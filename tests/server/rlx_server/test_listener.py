"""Who gets a process, who waits, and what the server's own process keeps to itself."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import psutil
import pytest

from relaax import rlx
from relaax.rlx import ErrorCode
from support.processes import Running, wait_until
from support.rlx_line import Line
from support.rlx_pair import make_hello

Server = tuple[Running, str]


def sockets_of(pid: int) -> list[Path]:
    sockets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if link.readlink().name.startswith("socket:"):
                sockets.append(link)
    return sockets


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


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
    before = descriptors_of(server.pid)
    for _ in range(20):
        Line(address).socket.close()
    with Line(address) as waiting, Line(address) as line:
        line.open()  # whoever came before was looked at by now
        assert len(server.children()) == 1
        assert waiting.connection.state is rlx.State.AWAIT_HELLO
        line.say(rlx.Bye())
        line.expect_end()
    wait_until(lambda: descriptors_of(server.pid) == before, "every descriptor was given back")


def test_a_connection_that_says_nothing_expires_without_a_process(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=1.0)
    with Line(address) as line:
        line.expect_end()
        assert not server.children()


def test_a_hello_that_never_ends_expires_with_its_process(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=1.0)
    with Line(address) as line:
        line.socket.sendall(line.connection.send(make_hello())[:-1])
        assert line.expect(rlx.Error).code is ErrorCode.TIMEOUT
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")


def test_no_more_than_max_handshakes_are_under_way(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(max_handshakes=2, handshake_timeout=100)
    with contextlib.ExitStack() as stack:
        halves = [stack.enter_context(Line(address)) for _ in range(2)]
        for line in halves:
            line.socket.sendall(b"\0")
        wait_until(lambda: len(server.children()) == 2, "both have a process")
        waiting = [stack.enter_context(Line(address)) for _ in range(3)]
        for line in waiting:
            line.say(make_hello())
        waiting[0].socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting[0].hear()
        assert len(server.children()) == 2
        halves[0].socket.close()
        for line in waiting:  # one place is enough for one after the other: who was let in needs none
            line.socket.settimeout(20)
            line.expect(rlx.Welcome)
        wait_until(lambda: len(server.children()) == 4, "who left has made room")


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


def test_without_memory_nobody_is_let_in(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(memory_reserve=1e9)
    with Line(address) as line:
        line.say(make_hello())
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.OVERLOADED
        assert "MB" in error.message


def test_the_parent_keeps_no_connection_and_no_thread(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    settled(server, address)
    before = len(sockets_of(server.pid))
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(Line(address)) for _ in range(3)]
        for line in lines:
            line.open()
            assert line.init() == 0
        wait_until(lambda: len(sockets_of(server.pid)) == before, "what was handed to a worker was closed")
        parent = psutil.Process(server.pid)
        assert [c.status for c in parent.net_connections("tcp")] == [psutil.CONN_LISTEN]
        assert parent.num_threads() == 1
        for child in server.children():
            assert [c.status for c in child.net_connections("tcp")] == [psutil.CONN_ESTABLISHED], "one, and no other's"


def test_connections_that_come_and_go_leave_nothing_behind(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    settled(server, address)
    before = descriptors_of(server.pid)
    for _ in range(15):
        with Line(address) as line:
            line.open()
    wait_until(lambda: not psutil.Process(server.pid).children(), "the workers have ended and were buried")
    wait_until(lambda: descriptors_of(server.pid) == before, "every descriptor was given back")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are set on Linux")
def test_silent_connections_that_use_up_all_descriptors_shut_nobody_out(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(handshake_timeout=300)
    settled(server, address)
    limit = descriptors_of(server.pid) + 20
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Line(address)) for _ in range(60)]
        with Line(address) as line:
            line.open()
            assert line.init() == 0
        for early in silent[:10]:  # who waited longest made room
            early.expect_end()


def test_connections_that_say_a_byte_and_wait_do_not_pile_up(serve) -> None:  # type: ignore[no-untyped-def]
    """They are past the parent's look, and each costs a place for no longer than the handshake may last."""
    server, address = serve(handshake_timeout=1.0, max_handshakes=2)
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(Line(address)).socket.sendall(b"\0")
        with Line(address) as line:
            line.open()
            assert len(server.children()) <= 3
