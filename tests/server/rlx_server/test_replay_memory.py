"""Tests of the replay memory of a worker's agent: created after the first init, closed with the connection."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax import rlx
from relaax.algorithm_base import load_algorithm
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.replay.interfaces import ReplayError, ReplayMemory, ReplayUnavailable
from relaax.replay.local import LocalReplay
from relaax.rlx import ErrorCode
from relaax.server.access import ReplayUse, replay_source
from relaax.server.rlx_server.child_process import EXIT_DONE
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.worker_reports import Grant, WorkerReports, answer_claim, report_sockets
from relaax.server.rlx_server.workers import worker
from relaax.server.rlx_server.workers.plan import WorkerPlan, plan_workers
from support import replay_algorithm
from support.offline_client import OfflineClient
from support.rlx_pair import make_hello

SOURCE = Path(replay_algorithm.__file__)
SESSION = "0123456789abcdef"
STEPS = 5


class Memory:
    """A source of the replay memory of one connection, or of an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.uses: list[ReplayUse] = []
        self.closed = 0
        self._error = error

    def __call__(self, use: ReplayUse) -> ReplayMemory:
        self.uses.append(use)
        if self._error is not None:
            raise self._error
        self.replay = LocalReplay(use.declaration, environments=len(use.actors))
        close = self.replay.close

        def close_and_count() -> None:
            self.closed += 1
            close()

        self.replay.close = close_and_count  # type: ignore[method-assign]
        return self.replay


def plan_with(memory: Memory, **keys: Any) -> WorkerPlan:
    algorithm = load_algorithm(str(SOURCE), SOURCE.parent)
    config = algorithm.configure({"path": str(SOURCE), **keys})
    return WorkerPlan(RlxServerSection(), algorithm, config, "cpu", OfflineClient, memory)


class ScriptedClient:
    """A thread that steps two environments as a client and then disconnects."""

    def __init__(self, sock: socket.socket, mode: rlx.Mode) -> None:
        self.received: list[Any] = []
        self._socket = sock
        self._socket.settimeout(30)
        self._connection = rlx.ClientConnection()
        self._hello = make_hello(environments=2, session_id=SESSION, mode=mode)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _send(self, message: Any) -> None:
        self._socket.sendall(self._connection.send(message))

    def _receive(self) -> Any:
        while True:
            event = self._connection.next_event()
            if event is rlx.NEED_DATA:
                self._connection.receive_data(self._socket.recv(1 << 16))
            elif not isinstance(event, rlx.Ping):
                self.received.append(event)
                return event

    def _run(self) -> None:
        observation = [np.zeros((2, 2), np.float32)]
        self._send(self._hello)
        if not isinstance(self._receive(), rlx.Welcome):
            return
        self._send(rlx.Init(observation))
        for _ in range(STEPS):
            if not isinstance(self._receive(), rlx.Actions):
                return
            self._send(rlx.Step(np.ones(2), observation))
        self._receive()
        self._send(rlx.Bye("done"))


def serve_client(load: Callable[[], WorkerPlan], mode: rlx.Mode = rlx.Mode.TRAIN) -> tuple[list[Any], int]:
    """Serve one client in this process; return the messages it receives and the worker's exit code."""
    worker_end, client_end = socket.socketpair()
    (lifeline, server), (server_reports, reports) = os.pipe(), report_sockets()
    answer_claim(server_reports, Grant(0, 0))
    with client_end:
        client = ScriptedClient(client_end, mode)
        serving = worker.Worker(RlxServerSection(), load, worker_end, lifeline, WorkerReports(reports), Meters(1, 1))
        code = serving.serve(None, False)
        client.thread.join(60)
    for descriptor in (lifeline, server, server_reports):
        os.close(descriptor)
    return client.received, code


@pytest.mark.parametrize(("bundle", "session"), [(False, ""), (True, SESSION)])
def test_training_agent_has_replay_memory_until_it_disconnects(bundle: bool, session: str) -> None:
    memory = Memory()
    received, code = serve_client(lambda: plan_with(memory, bundle=bundle, min_size=4, batch=4))
    assert [type(each) for each in received[1:]] == [rlx.Actions] * (STEPS + 1)
    assert code == EXIT_DONE
    (use,) = memory.uses
    assert (use.declaration.spec.name, use.actors, use.session) == (replay_algorithm.NAME, (0, 1), session)
    assert memory.replay.table.size == 2 * STEPS
    assert memory.replay.limiter.samples == (4 * (STEPS - 1) if bundle else 0)
    assert memory.closed == 1


def test_exploiting_agent_has_no_replay_memory() -> None:
    memory = Memory()
    received, _ = serve_client(lambda: plan_with(memory), rlx.Mode.EXPLOIT)
    assert isinstance(received[-1], rlx.Actions)
    assert memory.uses == []


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ReplayUnavailable("no replay server answers"), ErrorCode.UNAVAILABLE, "no replay server answers"),
        (
            ReplayError("the table differs in alpha"),
            ErrorCode.AGENT_FAILED,
            "this server cannot use its replay memory: the table differs in alpha",
        ),
    ],
)
def test_client_receives_the_error_of_the_replay_memory(error: Exception, code: ErrorCode, sentence: str) -> None:
    received, exit_code = serve_client(lambda: plan_with(Memory(error)))
    assert isinstance(received[-1], rlx.Error)
    assert (received[-1].code, received[-1].message) == (code, sentence)
    assert received[-1].retryable == (code is ErrorCode.UNAVAILABLE)
    assert exit_code == EXIT_DONE


def test_replay_algorithm_without_replay_server_is_refused() -> None:
    algorithm = load_algorithm(str(SOURCE), SOURCE.parent)
    section = {"path": str(SOURCE)}
    with pytest.raises(ConfigurationError, match=r"relaax-rlx-server.replay_server: replay_algorithm keeps experience"):
        plan_workers(RlxServerSection(), section, str(SOURCE), SOURCE.parent)
    for settings in (RlxServerSection(exploit=True), RlxServerSection(checkpoint="somewhere")):
        assert replay_source(settings, algorithm) is None, "agents that only act need no replay server"
    assert replay_source(RlxServerSection(replay_server="localhost:1,localhost:2"), algorithm) is not None  # type: ignore[arg-type]
    assert replay_source(RlxServerSection(), load_algorithm("da3c", Path.cwd())) is None
