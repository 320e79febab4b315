"""How an RLX server ends, and how it ends with it what it started."""

from __future__ import annotations

import signal
import socket

import pytest

from relaax import rlx
from relaax.rlx import ErrorCode
from support.offline_algorithm import SLOW
from support.processes import Running, wait_until
from support.rlx_line import Line

SPAWNED = (pytest.mark.slow, pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/rlx"))
# A spawned worker takes seconds to start.
pytestmark = pytest.mark.parametrize("worker_start", ["fork", pytest.param("spawn", marks=SPAWNED)])


def start_episode(line: Line) -> None:
    line.open()
    assert line.init() == 0


def expect_goodbye(line: Line) -> None:
    error = line.expect(rlx.Error)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.retryable
    assert "stopping" in error.message
    line.expect_end()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_in_order(serve, number: int, code: int) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    # `silent` comes first, so it was taken in when `line` is served: whom nobody takes in any more gets a reset.
    with Line(address) as silent, Line(address) as line:
        start_episode(line)
        server.send_signal(number)
        expect_goodbye(line)
        silent.expect_end()
    assert server.wait(30) == code
    assert not server.children()
    assert "Traceback" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        Line(address)


@pytest.mark.parametrize("send", [Running.send_signal, Running.signal_group])
def test_connections_end_with_their_episodes_where_there_is_time_for_that(serve, send) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0", drain=600.0)
    with Line(address) as line, Line(address) as other:
        start_episode(line)
        start_episode(other)
        send(server, signal.SIGTERM)
        wait_until(lambda: refuses(address), "a server that lets nobody in any more")
        for _ in range(3):
            line.step()
        for each in (line, other):
            each.say(rlx.Reset(_one()))
            each.expect(rlx.EpisodeReturns)
            error = each.expect(rlx.Error)
            assert (error.code, error.retryable) == (ErrorCode.REBALANCING, True)
            assert "about to stop" in error.message
            each.expect_end()
    assert server.wait(30) == 0
    assert "draining 2 connections: each ends with its episode, within 600 s" in server.stderr
    assert "Traceback" not in server.stderr


@pytest.mark.parametrize("drain", [600.0, 0.2])
def test_what_has_not_ended_is_cut_by_another_signal_or_by_the_time(serve, drain: float) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(drain=drain)
    with Line(address) as line:
        start_episode(line)
        server.send_signal(signal.SIGTERM)
        if drain > 1.0:
            wait_until(lambda: refuses(address), "a server that lets nobody in any more")
            server.send_signal(signal.SIGTERM)
        expect_goodbye(line)
    assert server.wait(30) == 0


def refuses(address: str) -> bool:
    """Whether nobody listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it is about to
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_to_the_group_ends_the_server_in_order(serve, number: int, code: int) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    with Line(address) as line:
        start_episode(line)
        server.signal_group(number)
        expect_goodbye(line)
    assert server.wait(30) == code
    assert "died" not in server.stderr
    assert "Traceback" not in server.stderr


def test_a_worker_in_the_middle_of_something_may_finish_it(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(heartbeat=0.1)
    with Line(address) as line:
        start_episode(line)
        line.say(rlx.Step(reward=_one(), observation=line.observation(SLOW)))
        _wait_for_ping(line)  # the agent is at it
        server.send_signal(signal.SIGTERM)
        line.expect(rlx.Actions)
        expect_goodbye(line)
    assert server.wait(30) == 0


def test_workers_do_not_outlive_a_server_that_was_killed(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line, Line(address) as idle:
        start_episode(line)
        idle.open()
        assert len(server.children()) == 2
        server.kill()
        expect_goodbye(line)
        expect_goodbye(idle)
    wait_until(lambda: not server.children(), "the workers have ended")


@pytest.mark.slow
def test_a_server_that_was_killed_can_be_started_again_at_once(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line:
        start_episode(line)
        server.kill()
        wait_until(lambda: not server.children(), "the workers have ended")
        again, same = serve("--bind", address)
        assert same == address
        assert again.returncode is None
        with Line(address) as later:
            start_episode(later)


def test_a_worker_that_does_not_end_is_killed_and_the_server_ends(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(constants={"listening.listener.STOP_SECONDS": 0.5})
    with Line(address) as line:
        start_episode(line)
        (worker,) = server.children()
        worker.suspend()
        assert server.stop(timeout=60) == 0
        assert not worker.is_running()


def _wait_for_ping(line: Line) -> None:
    while line.connection.next_event() is rlx.NEED_DATA:
        line.connection.receive_data(line.socket.recv(1 << 16))


def _one() -> rlx.Rewards:
    import numpy as np

    return np.ones(1)


def test_running_helper_sees_workers(serve) -> None:  # type: ignore[no-untyped-def]
    """What the tests above lean on: without it an empty list of children would prove nothing."""
    server, address = serve()
    assert isinstance(server, Running)
    assert server.children() == []
    with Line(address) as line:
        start_episode(line)
        assert len(server.children()) == 1
