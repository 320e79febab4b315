"""Synchronous updates of da3c's workers, with real servers and worker processes."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import wait_until
from support.rlx_line import Line
from support.service import Service, started_service

BOUND = 60.0
NEVER = 3600.0
ROLLOUT = 5


class Playing(threading.Thread):
    """Steps of one connection's environments, in a thread of its own."""

    def __init__(self, line: Line, steps: int) -> None:
        super().__init__(daemon=True)
        self._line, self._steps = line, steps
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            for _ in range(self._steps):
                self._line.step()
        except (OSError, AssertionError) as error:  # the connection has ended
            self._error = error

    def finish(self) -> None:
        self.join(BOUND)
        assert not self.is_alive(), "a worker waits"
        if self._error is not None:
            raise self._error


def play(lines: Sequence[Line], rollouts: int) -> None:
    """Play so many rollouts on all connections at the same time."""
    for playing in [Playing(line, rollouts * ROLLOUT) for line in lines]:
        playing.finish()


@contextmanager
def two_lines(service: Service) -> Iterator[tuple[Line, Line]]:
    """Two connections, whose workers participate in the updates."""
    with Line(service.address) as one, Line(service.address) as two:
        # After this, each update of one worker is also one of the other, and both are on the same version. Otherwise
        # one of them would wait for a push of the other that never comes.
        one.open()
        one.init()
        play([one], 2)
        wait_until(lambda: service.status.updates == 2, "the first worker's updates")
        two.open()
        two.init()
        with waiting_worker(service, two, 8) as playing:
            play([one], 8)
            playing.finish()
        wait_until(lambda: service.status.updates == 10, "the updates of both")
        yield one, two


@contextmanager
def waiting_worker(service: Service, line: Line, rollouts: int) -> Iterator[Playing]:
    """A connection that plays so many rollouts, and whose worker waits for the other one after the first of them."""
    before = service.status.global_step
    playing = Playing(line, rollouts * ROLLOUT)
    wait_until(lambda: service.status.global_step >= before + ROLLOUT, "the worker has pushed")
    assert playing.is_alive()
    yield playing


def test_workers_update_together(tmp_path: Path) -> None:
    with started_service(tmp_path, sync="all", sync_patience=NEVER) as service, two_lines(service) as lines:
        before = service.status
        play(lines, 20)
        after = service.status
        assert after.updates - before.updates == pytest.approx(20, abs=1)
        assert after.global_step - before.global_step == pytest.approx(2 * 20 * ROLLOUT, abs=2 * ROLLOUT)
        assert after.discarded == before.discarded


@pytest.mark.parametrize("bridge", ["auto", "grpc"])
def test_killed_worker_process_does_not_delay_others(tmp_path: Path, bridge: str) -> None:
    with started_service(tmp_path, sync="all", sync_patience=NEVER) as service:
        if bridge == "grpc":
            service.rlx_server.stop()
            service.start_rlx_server("127.0.0.1:0", parameter_server=service.parameter_server_address)
        with two_lines(service) as (_, two), waiting_worker(service, two, 10) as playing:
            first, _ = sorted(service.rlx_server.children(), key=lambda process: process.create_time())
            first.send_signal(signal.SIGKILL)
            playing.finish()


def test_disconnected_client_does_not_delay_others(tmp_path: Path) -> None:
    with (
        started_service(tmp_path, sync="all", sync_patience=NEVER) as service,
        two_lines(service) as (one, two),
        waiting_worker(service, two, 10) as playing,
    ):
        one.socket.close()
        playing.finish()
        assert service.status.workers == 1


def test_idle_client_is_left_out_after_the_patience(tmp_path: Path) -> None:
    with started_service(tmp_path, sync="all", sync_patience=0.5) as service, two_lines(service) as (one, idle):
        before = service.status.updates
        play([one], 20)
        assert service.status.updates - before == pytest.approx(20, abs=1)
        play((one, idle), 10)


def test_waiting_worker_ends_with_its_server(tmp_path: Path) -> None:
    with (
        started_service(tmp_path, sync="all", sync_patience=NEVER) as service,
        two_lines(service) as (one, _),
        waiting_worker(service, one, 3),
    ):
        assert service.rlx_server.stop(timeout=BOUND) == 0
        assert "SIGKILL" not in service.rlx_server.stderr


def test_waiting_worker_ends_with_its_client(tmp_path: Path) -> None:
    with (
        started_service(tmp_path, sync="all", sync_patience=NEVER) as service,
        two_lines(service) as (one, two),
        waiting_worker(service, two, 3),
    ):
        two.socket.shutdown(socket.SHUT_RDWR)  # the other thread still reads it
        wait_until(lambda: service.status.workers == 1, "the waiting worker has ended")
        play([one], 10)
