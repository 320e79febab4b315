"""Tests of how an RLX server stops: by signal, with draining, and when it is killed."""

from __future__ import annotations

import signal
import socket

import pytest

from relaax import rlx
from relaax.rlx import ErrorCode
from support.offline_algorithm import SLOW
from support.processes import Running, wait_until
from support.rlx_line import Line
from support.scrape import health, scraped, status_url

SPAWNED = (pytest.mark.slow, pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/rlx"))
# A spawned worker takes seconds to start.
pytestmark = pytest.mark.parametrize("worker_start", ["fork", pytest.param("spawn", marks=SPAWNED)])


def start_episode(line: Line) -> None:
    line.open()
    assert line.init() == 0


def expect_stopping(line: Line) -> None:
    error = line.expect(rlx.Error)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.retryable
    assert "stopping" in error.message
    line.expect_end()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_stops_server_and_notifies_its_clients(serve, number: int, code: int) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    # `silent` connects first, so it is accepted before `line` is served. A connection not yet accepted gets a reset.
    with Line(address) as silent, Line(address) as line:
        start_episode(line)
        server.send_signal(number)
        expect_stopping(line)
        silent.expect_end()
    assert server.wait(30) == code
    assert not server.children()
    assert "Traceback" not in server.stderr
    with pytest.raises(ConnectionRefusedError):
        Line(address)


@pytest.mark.parametrize("send", [Running.send_signal, Running.signal_group])
def test_draining_server_ends_each_connection_with_its_episode(serve, send) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0", drain=600.0)
    with Line(address) as line, Line(address) as other:
        start_episode(line)
        start_episode(other)
        url = status_url(server)
        send(server, signal.SIGTERM)
        wait_until(lambda: refuses(address), "the server accepts no connections")
        wait_until(lambda: health(url)[0] == 503, "the status is that of a stopping server", timeout=60)
        until = uptime(url) + 1.5  # a sample is sent each second
        wait_until(lambda: uptime(url) > until, "another sample is served", timeout=60)
        assert health(url)[0] == 503
        for _ in range(3):
            line.step()
        for each in (line, other):
            each.send(rlx.Reset(_one_reward()))
            each.expect(rlx.EpisodeReturns)
            error = each.expect(rlx.Error)
            assert (error.code, error.retryable) == (ErrorCode.REBALANCING, True)
            assert "about to stop" in error.message
            each.expect_end()
    assert server.wait(30) == 0
    assert "draining 2 connections: each ends with its episode, within 600 s" in server.stderr
    assert "Traceback" not in server.stderr


@pytest.mark.parametrize("drain", [600.0, 0.2])
def test_drain_ends_at_a_second_signal_or_its_timeout(serve, drain: float) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(drain=drain)
    with Line(address) as line:
        start_episode(line)
        server.send_signal(signal.SIGTERM)
        if drain > 1.0:
            wait_until(lambda: refuses(address), "the server accepts no connections")
            server.send_signal(signal.SIGTERM)
        expect_stopping(line)
    assert server.wait(30) == 0


def uptime(url: str) -> float:
    return scraped(url)["relaax_rlx_server_uptime_seconds"]


def refuses(address: str) -> bool:
    """Return whether connections to `address` are refused."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # the socket is being closed
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_to_the_process_group_stops_the_server_cleanly(serve, number: int, code: int) -> None:  # type: ignore[no-untyped-def]
    server, address = serve("--status-bind", "127.0.0.1:0")
    with Line(address) as line:
        start_episode(line)
        server.signal_group(number)
        expect_stopping(line)
    assert server.wait(30) == code
    assert "died" not in server.stderr
    assert "Traceback" not in server.stderr


def test_busy_worker_finishes_its_step_before_the_stop(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(heartbeat=0.1)
    with Line(address) as line:
        start_episode(line)
        line.send(rlx.Step(reward=_one_reward(), observation=line.observation(SLOW)))
        _wait_for_ping(line)  # the agent is computing
        server.send_signal(signal.SIGTERM)
        line.expect(rlx.Actions)
        expect_stopping(line)
    assert server.wait(30) == 0


def test_workers_end_with_a_killed_server(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line, Line(address) as idle:
        start_episode(line)
        idle.open()
        assert len(server.children()) == 2
        server.kill()
        expect_stopping(line)
        expect_stopping(idle)
    wait_until(lambda: not server.children(), "the workers have ended")


@pytest.mark.slow
def test_killed_server_can_restart_at_once_on_the_same_port(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line:
        start_episode(line)
        server.kill()
        wait_until(lambda: not server.children(), "the workers have ended")
        restarted, same = serve("--bind", address)
        assert same == address
        assert restarted.returncode is None
        with Line(address) as new_line:
            start_episode(new_line)


def test_suspended_worker_is_killed_when_the_server_stops(serve) -> None:  # type: ignore[no-untyped-def]
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


def _one_reward() -> rlx.Rewards:
    import numpy as np

    return np.ones(1)


def test_running_helper_lists_the_workers(serve) -> None:  # type: ignore[no-untyped-def]
    """The tests above rely on this list: an empty one must mean that there are no workers."""
    server, address = serve()
    assert isinstance(server, Running)
    assert server.children() == []
    with Line(address) as line:
        start_episode(line)
        assert len(server.children()) == 1
