"""Tests of one connection and its worker process, over real sockets: answers, errors and ends."""

from __future__ import annotations

import io
import logging
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from relaax import rlx
from relaax.algorithm_base import load_algorithm
from relaax.configuration import RlxServerSection
from relaax.parameters.interfaces import (
    ParameterServerError,
    ParameterServerUnauthenticated,
    ParameterServerUnavailable,
    ParameterServerUnusable,
)
from relaax.rlx import ErrorCode, Sender
from relaax.rlx.messages import MAX_REWARD
from relaax.rlx.wire.codecs import codec_named
from relaax.rlx.wire.framing import frame
from relaax.server.rlx_server.child_process import EXIT_DONE, EXIT_FAILED
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.worker_reports import (
    ADMITTED,
    CLAIMS,
    WELCOMED,
    Grant,
    WorkerReports,
    answer_claim,
    report_sockets,
)
from relaax.server.rlx_server.workers import worker
from support.offline import ALGORITHM, write_config
from support.offline_algorithm import (
    CRASH,
    FINISH,
    HELD,
    ILLEGAL,
    LEARN_ALL,
    LEARN_RAISE,
    LEARN_WAIT,
    PROCESS_ID,
    RAISE,
    SLOW,
    SLOW_TO_LEARN,
    WAIT,
)
from support.offline_client import OfflineClient, OfflineClientWithParameters
from support.processes import Processes, Running, wait_until
from support.rlx_line import PATIENCE, Line
from support.rlx_pair import batch, make_hello, make_step
from support.rlx_vector_recorder import framed
from support.service import RLX_SERVER

Server = tuple[Running, str]
PROCESS_IDS = rlx.Discrete(2**30)


def failure(reason: str, before: str = "") -> str:
    """Return the error of an agent that fails in the line after the one that contains `before`.

    Without `before`, the error names no line.
    """
    lines = ALGORITHM.read_text().splitlines()
    line = next((f", line {number + 1}" for number, text in enumerate(lines, 1) if before and before in text), "")
    place = ALGORITHM.relative_to(Path.cwd()) if ALGORITHM.is_relative_to(Path.cwd()) else ALGORITHM
    return f"the agent failed at {place}{line}: {reason}; the RLX server's log has the traceback"


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_whole_connection_from_hello_to_bye_is_served(shared: Server, codec: str) -> None:
    _, address = shared
    with Line(address, codec) as line:
        welcome = line.open(environments=2)
        assert welcome.algorithm == "offline_algorithm"
        assert welcome.session_id
        assert welcome.limits.heartbeat_seconds == pytest.approx(0.2)
        assert line.init() == 0
        assert line.step() == 0
        line.send(rlx.Reset(np.array([3.0, 4.0])))
        assert line.expect(rlx.EpisodeReturns).episode_return.tolist() == [4.0, 5.0]
        line.send(rlx.Ping(7))
        assert line.expect(rlx.Pong).nonce == 7
        line.send(rlx.Metrics([("height", 1.0)]), rlx.Init(line.observation(0)))
        line.expect(rlx.Actions)
        line.send(rlx.Bye("done"))
        line.expect_end()


def test_each_connection_has_its_own_process_until_it_ends(shared: Server) -> None:
    server, address = shared
    with Line(address) as one, Line(address) as two:
        one.open(action_space=PROCESS_IDS)
        two.open(action_space=PROCESS_IDS)
        first, second = one.init(PROCESS_ID), two.init(PROCESS_ID)
        assert len({first, second, server.pid}) == 3
        assert {first, second} <= {child.pid for child in server.children()}
    for pid in (first, second):
        wait_until(lambda pid=pid: not psutil.pid_exists(pid), "the worker has ended and is reaped")  # type: ignore[misc]


def test_failed_agent_is_reported_to_its_client_alone(shared: Server) -> None:
    server, address = shared
    with Line(address) as other, Line(address) as line:
        other.open()
        line.open()
        line.init()
        line.send(rlx.Step(np.ones(1), line.observation(RAISE)))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.AGENT_FAILED
        assert error.message == failure("RuntimeError: ordered to fail", "order == RAISE")
        assert not error.retryable
        line.expect_end()
        assert other.init() == 0
    assert "Traceback" in server.stderr
    assert "ordered to fail" in server.stderr
    with Line(address) as new_line:
        new_line.open()
        assert new_line.init() == 0


def test_invalid_action_is_reported_as_agent_failed(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.send(rlx.Init(line.observation(ILLEGAL)))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.AGENT_FAILED
        assert error.message == failure(
            "the agent returned actions outside its action space: action holds -1, not a value of Discrete(3)"
        )


def test_crashed_worker_disconnects_only_its_client(shared: Server) -> None:
    server, address = shared
    with Line(address) as other, Line(address) as line:
        other.open()
        line.open()
        line.send(rlx.Init(line.observation(CRASH)))
        assert isinstance(line.receive(), rlx.ConnectionClosed)
        assert other.init() == 0
    wait_until(lambda: "SIGKILL" in server.stderr, "the server logs how the worker ended")


def test_unsupported_spaces_are_refused_with_the_reason(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.send(make_hello(observation_space=rlx.Discrete(3)))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.UNSUPPORTED_SPACE
        assert "Discrete(3)" in error.message
        assert "Box" in error.message
        assert not error.retryable


def test_client_receives_pings_before_its_welcome(serve, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Admission takes seconds if the algorithm is loaded first."""
    gate = tmp_path / "closed"
    gate.touch()
    _, address = serve(heartbeat=0.1, algorithm={"hold": str(gate)})
    with Line(address) as line:
        line.send(make_hello(action_space=rlx.Discrete(HELD)))
        while (event := line.connection.next_event()) is rlx.NEED_DATA:
            line.connection.receive_data(line.socket.recv(1 << 16))
        assert isinstance(event, rlx.Ping)
        gate.unlink()
        line.expect(rlx.Welcome)


def serve_one_client(load: Callable[[], worker.WorkerPlan]) -> tuple[rlx.Error, int, bytes]:
    """Serve one client in this process; return the error it receives, the exit code and the reports."""
    worker_end, client = socket.socketpair()
    (lifeline, server), (server_reports, reports) = os.pipe(), report_sockets()
    answer_claim(server_reports, Grant(0, 0))
    connection = rlx.ClientConnection()
    with client:
        client.sendall(connection.send(make_hello()))
        client.shutdown(socket.SHUT_WR)
        code = worker.Worker(
            RlxServerSection(), load, worker_end, lifeline, WorkerReports(reports), Meters(1, 1)
        ).serve(None, False)
        connection.receive_data(client.recv(1 << 16))
    error = connection.next_event()
    assert isinstance(error, rlx.Error)
    assert os.read(server_reports, 1) == CLAIMS
    _, _, received = os.read(server_reports, 4096).partition(b"]")
    for descriptor in (lifeline, server, server_reports):
        os.close(descriptor)
    return error, code, received


def test_client_receives_the_error_of_a_failed_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("nothing to measure")

    monkeypatch.setattr(worker, "Sampler", fail)
    algorithm = load_algorithm(str(ALGORITHM), ALGORITHM.parent)
    plan = worker.WorkerPlan(
        RlxServerSection(), algorithm, algorithm.configure({"path": str(ALGORITHM)}), "cpu", OfflineClient
    )
    error, code, reports = serve_one_client(lambda: plan)
    assert error.code is ErrorCode.AGENT_FAILED
    assert "nothing to measure" in error.message
    assert (code, reports) == (EXIT_FAILED, b"1")


def test_evicted_worker_tells_its_client_to_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has not proved that it read its welcome, so the worker has created no agent."""
    algorithm = load_algorithm(str(ALGORITHM), ALGORITHM.parent)
    monkeypatch.setattr(algorithm.Agent, "__init__", None)
    parameters_client = OfflineClient()
    plan = worker.WorkerPlan(
        RlxServerSection(), algorithm, algorithm.configure({"path": str(ALGORITHM)}), "cpu", lambda: parameters_client
    )
    worker_end, client = socket.socketpair()
    (lifeline, server), (server_reports, reports) = os.pipe(), report_sockets()
    answer_claim(server_reports, Grant(0, 0))
    connection = rlx.ClientConnection()
    received = b""

    def read_reports_until_the_welcome() -> None:
        nonlocal received
        assert os.read(server_reports, 1) == CLAIMS
        while os.read(server_reports, 1) != b"]":
            pass
        while not received.endswith(WELCOMED):
            received += os.read(server_reports, 1)
        os.close(server_reports)  # the server evicts the worker

    reader = threading.Thread(target=read_reports_until_the_welcome)
    reader.start()
    with client:
        client.sendall(connection.send(make_hello()))
        code = worker.Worker(
            RlxServerSection(), lambda: plan, worker_end, lifeline, WorkerReports(reports), Meters(1, 1)
        ).serve(None, False)
        connection.receive_data(client.recv(1 << 16))
    reader.join()
    for descriptor in (lifeline, server):
        os.close(descriptor)
    while isinstance(first := connection.next_event(), rlx.Ping):
        pass  # importing TensorFlow may take longer than a heartbeat
    assert isinstance(first, rlx.Welcome)
    error = connection.next_event()
    assert isinstance(error, rlx.Error)
    assert (error.code, error.retryable, error.retry_after_seconds) == (ErrorCode.OVERLOADED, True, 1.0)
    assert "no init" in error.message
    assert (code, received) == (EXIT_DONE, ADMITTED + WELCOMED)
    assert parameters_client.closed


def test_messages_before_the_first_init_are_answered(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.send(rlx.Ping(7), rlx.Pong(1), rlx.Metrics([("height", 1.0)]), rlx.Ping(8))
        assert [line.expect(rlx.Pong).nonce for _ in range(2)] == [7, 8]
        assert line.init() == 0
    with Line(address) as line:
        line.open()
        line.send(rlx.Bye())
        line.expect_end()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ParameterServerUnavailable("unreachable"), ErrorCode.UNAVAILABLE),
        (ParameterServerUnusable("no parameters"), ErrorCode.AGENT_FAILED),
        (ParameterServerUnauthenticated("no token"), ErrorCode.AGENT_FAILED),
        (ParameterServerError("another model"), ErrorCode.SPACE_MISMATCH),
    ],
)
def test_parameter_server_error_reaches_the_client_with_its_code(
    failure: ParameterServerError, code: ErrorCode
) -> None:
    def fail() -> worker.WorkerPlan:
        raise failure

    error, _, _ = serve_one_client(fail)
    assert error.code is code
    assert error.retryable is (code is ErrorCode.UNAVAILABLE)
    assert str(failure) in error.message


def test_client_of_a_slow_agent_receives_pings_while_it_waits(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        assert line.init(SLOW) == 0
        assert line.pings >= 2
        received = line.pings
        line.send(rlx.Metrics([("height", 1.0)]))
        line.socket.settimeout(0.5)  # more than two heartbeats
        with pytest.raises(TimeoutError):
            line.receive()
        assert line.pings == received, "only a waiting client receives pings"


def test_actions_are_sent_before_the_agent_learns(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init()
        before = line.pings
        assert line.step(SLOW_TO_LEARN) == 0
        assert line.pings < before + 2
        assert line.step() == 0, "the next step is answered after learning"
        assert line.pings >= before + 2, "a client that waits for learning receives pings"
        received = line.pings
        line.socket.settimeout(0.5)  # more than two heartbeats
        with pytest.raises(TimeoutError):
            line.receive()
        assert line.pings == received


def test_training_end_during_learning_is_sent_to_the_client(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line:
        line.open()
        assert line.init(LEARN_ALL) == 0
        line.send(rlx.Step(np.ones(1), line.observation(0)))
        assert line.expect(rlx.TrainingFinished).global_step == 1000
        line.expect_end()
    assert server.wait() == 0


def test_learning_error_is_sent_at_the_next_step(shared: Server) -> None:
    server, address = shared
    with Line(address) as line:
        line.open()
        assert line.init(LEARN_RAISE) == 0
        line.send(rlx.Metrics([("height", 1.0)]), rlx.Pong())
        line.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            line.receive()  # the server sends errors only in its turn
        line.socket.settimeout(PATIENCE)
        line.send(rlx.Step(np.ones(1), line.observation(0)))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.AGENT_FAILED
        assert error.message == failure("RuntimeError: ordered to fail in learn", "order == LEARN_RAISE")
        line.expect_end()
    assert "ordered to fail in learn" in server.stderr


def test_training_end_is_recorded_if_the_client_disconnects(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line:
        line.open()
        assert line.init(LEARN_ALL) == 0
        line.send(rlx.Bye())
        line.expect_end()
    assert server.wait() == 0
    assert "Traceback" not in server.stderr


BROKEN = {
    "not a frame": (b"hello, world\r\n", None),
    "an excessive length": (b"\xff\xff\xff\xff" + b"\x0a" * 64, ErrorCode.FRAME_TOO_LARGE),
    "no message": (struct.pack(">I", 3) + b"\x0a\x7f\x00", ErrorCode.MALFORMED),
    "incomplete json": (struct.pack(">I", 9) + b'{"hello":', ErrorCode.MALFORMED),
    "deeply nested json": (struct.pack(">I", 5000) + b'{"a":' * 1000, ErrorCode.MALFORMED),
    "an empty frame": (struct.pack(">I", 0) + b"\x0a", ErrorCode.MALFORMED),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_invalid_hello_is_answered_and_others_are_served(shared: Server, kind: str) -> None:
    _, address = shared
    data, code = BROKEN[kind]
    with Line(address) as other, Line(address, "json" if b"{" in data else "protobuf") as line:
        other.open()
        line.socket.sendall(data)
        error = line.expect(rlx.Error)
        assert error.code is code or code is None
        assert not error.retryable
        line.expect_end()
        assert other.init() == 0


def test_invalid_message_after_init_is_answered(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init()
        line.socket.sendall(struct.pack(">I", 4) + b"\xff\xff\xff\xff")
        assert line.expect(rlx.Error).code is ErrorCode.MALFORMED


def test_bye_instead_of_a_hello_closes_the_connection(shared: Server) -> None:
    server, address = shared
    before = len(server.stderr)
    with Line(address) as line:
        line.send(rlx.Bye("wrong server"))
        line.expect_end()
    assert "Traceback" not in server.stderr[before:]


@pytest.mark.parametrize("codec", ["protobuf", "json"])
def test_reward_past_the_limit_is_refused_by_name(shared: Server, codec: str) -> None:
    _, address = shared
    with Line(address, codec) as line:
        line.open()
        line.init()
        line.step(reward=np.array([MAX_REWARD]))
        step = replace(make_step(line.hello), reward=np.array([1.7e308]))
        line.socket.sendall(frame(codec_named(codec).encode(step, Sender.CLIENT), 2**20))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.INVALID_VALUE
        assert error.message == "reward is 1.7e+308; a number from -1e+15 to 1e+15 is allowed"


def test_error_with_a_lone_surrogate_is_still_sent(shared: Server) -> None:
    _, address = shared
    with Line(address, "json") as line:
        line.socket.sendall(framed(b'{"hello": {"protocolVersion": 1, "environments": "\\ud800"}}'))
        assert line.expect(rlx.Error).code is ErrorCode.MALFORMED


def test_message_out_of_turn_is_answered_with_allowed_ones(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        step = codec_named("protobuf").encode(make_step(line.hello), Sender.CLIENT)
        line.socket.sendall(frame(step, 2**20))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.UNEXPECTED_MESSAGE
        assert "Init" in error.message, "the error names the allowed messages"


def test_hello_init_and_step_in_one_packet_are_out_of_turn(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        hello = make_hello()
        messages = (hello, rlx.Init(batch(hello.observation_space, 1)), make_step(hello))
        codec = codec_named("protobuf")
        line.connection.send(hello)
        line.socket.sendall(b"".join(frame(codec.encode(message, Sender.CLIENT), 2**20) for message in messages))
        assert line.expect(rlx.Error).code is ErrorCode.UNEXPECTED_MESSAGE


@pytest.mark.parametrize("order", [0, SLOW], ids=["at once", "while it waits"])
def test_second_step_before_the_answer_is_out_of_turn(shared: Server, order: int) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init()
        step = line.connection.send(make_step(line.hello, observation=line.observation(order)))
        line.socket.sendall(step * 2)
        assert line.expect(rlx.Error).code is ErrorCode.UNEXPECTED_MESSAGE


def test_ping_is_answered_while_an_answer_is_pending(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init()
        line.send(
            make_step(line.hello, observation=line.observation(SLOW)), rlx.Ping(5), rlx.Metrics([("height", 2.0)])
        )
        assert line.expect(rlx.Pong).nonce == 5
        line.expect(rlx.Actions)
        assert line.step() == 0


def test_step_received_while_the_agent_learns_is_kept(shared: Server) -> None:
    """The heartbeat reads the step and the messages after it."""
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init(SLOW_TO_LEARN)
        line.send(make_step(line.hello, observation=line.observation(0)), rlx.Ping(6))
        assert line.expect(rlx.Pong).nonce == 6
        line.expect(rlx.Actions)
        line.send(rlx.Bye())
        line.expect_end()


def send_bye(line: Line) -> None:
    line.send(rlx.Bye())


def close_socket(line: Line) -> None:
    line.socket.close()


def send_invalid_bytes(line: Line) -> None:
    line.socket.sendall(struct.pack(">I", 4) + b"\xff\xff\xff\xff")


@pytest.mark.parametrize("order", [WAIT, LEARN_WAIT], ids=["an answer is pending", "the environments step"])
@pytest.mark.parametrize("disconnect", [send_bye, close_socket, send_invalid_bytes])
def test_busy_worker_ends_when_its_client_disconnects(
    shared: Server, order: int, disconnect: Callable[[Line], None]
) -> None:
    server, address = shared
    log_length = len(server.stderr)
    with Line(address) as line:
        line.open(action_space=PROCESS_IDS)
        worker_id = line.init(PROCESS_ID)
        line.send(make_step(line.hello, observation=line.observation(order)))
        if order == LEARN_WAIT:
            line.expect(rlx.Actions)
        disconnect(line)
        wait_until(lambda: not psutil.pid_exists(worker_id), "the worker has ended")
    assert "Traceback" not in server.stderr[log_length:]


def test_interrupt_is_unsafe_while_the_worker_logs() -> None:
    seen: list[bool] = []

    class Interrupted(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            signal.raise_signal(worker.INTERRUPT)
            return ""

    log, handler = logging.Logger("log"), logging.StreamHandler(io.StringIO())
    handler.setFormatter(Interrupted())
    log.addHandler(handler)
    before = signal.signal(worker.INTERRUPT, lambda _, frame: seen.append(worker.is_exception_unsafe(frame)))
    try:
        log.info("a line")
        signal.raise_signal(worker.INTERRUPT)
    finally:
        signal.signal(worker.INTERRUPT, before)
    assert seen == [True, False]


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
def test_busy_worker_ends_with_its_server(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(heartbeat=0.2)
    with Line(address) as line:
        line.open()
        line.init()
        line.send(make_step(line.hello, observation=line.observation(WAIT)))
        assert server.stop() == 0
        assert line.expect(rlx.Error).code is ErrorCode.UNAVAILABLE
    assert "is killed" not in server.stderr


def test_worker_awaiting_a_parameter_server_ends_with_its_client(processes: Processes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = write_config(tmp_path, heartbeat=1, parameter_server=f"127.0.0.1:{silent.getsockname()[1]}")
        server, address = processes.start_server(*RLX_SERVER, "--config", config)
        with Line(address) as line:
            line.send(make_hello())
            (child,) = wait_until(server.children, "the connection has a worker")
            called, _ = silent.accept()  # from the worker
        with called:
            wait_until(lambda: not child.is_running(), "the worker has ended")
    assert "Traceback" not in server.stderr


def test_nan_reward_is_refused_by_name(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init()
        frame = line.connection.send(rlx.Step(np.array([12345.0]), line.observation(0)))
        line.socket.sendall(frame.replace(struct.pack("<d", 12345.0), struct.pack("<d", float("nan"))))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.INVALID_VALUE
        assert "reward" in error.message
        assert "nan" in error.message


def test_error_reaches_a_client_that_is_still_sending(shared: Server) -> None:
    """If a socket is closed with unread bytes, TCP drops data just sent. The worker half-closes and drains instead."""
    _, address = shared
    with Line(address) as line:
        line.open()
        line.init()
        line.send(rlx.Step(np.ones(1), line.observation(RAISE)))
        flood = threading.Thread(target=_flood, args=(line.socket, 2 * 2**20))
        flood.start()
        try:
            assert line.expect(rlx.Error).code is ErrorCode.AGENT_FAILED
        finally:
            flood.join()


def _flood(connected: socket.socket, size: int) -> None:
    for _ in range(size // 65536):
        try:
            connected.sendall(b"\0" * 65536)
        except OSError:
            return


def test_client_that_never_reads_does_not_block_others(shared: Server) -> None:
    _, address = shared
    wide = rlx.Box(shape=(20_000,))
    with Line(address) as not_reading, Line(address) as line:
        not_reading.send(make_hello(observation_space=wide))
        line.open()
        assert line.init() == 0


def test_session_id_of_the_hello_is_kept(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        session = line.open().session_id
        line.send(rlx.Bye())
    with Line(address) as line:
        assert line.open(session_id=session).session_id == session
    with Line(address) as line:
        assert line.open().session_id not in ("", session)


def test_silent_client_is_disconnected_with_a_timeout_error(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve(idle_timeout=2.0)
    with Line(address) as line:
        line.open()
        line.init()
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.TIMEOUT
        assert error.retryable
        line.expect_end()
    wait_until(lambda: not server.children(), "the worker has ended")


def test_client_reconnects_for_parameters_with_other_names(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(parameters="names")
    with Line(address) as line:
        welcome = line.open(environments=2, autoreset=(rlx.Autoreset.SAME_STEP,), environment_parameters=True)
        assert welcome.parameter_names == ("gravity", "rooms")
        line.init(0)
        for _ in range(OfflineClientWithParameters.EACH):
            line.step()
        line.step(terminated=[False, True])
        error = line.expect(rlx.Error)
        assert (error.code, error.retryable) == (ErrorCode.REBALANCING, True)
        assert "other names" in error.message
        line.expect_end()


def test_connection_is_rebalanced_only_at_an_episode_end(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve("--timeout", "0.01")
    with Line(address) as line:
        line.open(environments=2, autoreset=(rlx.Autoreset.SAME_STEP,))
        line.init(SLOW)  # longer than the timeout of 0.01 s
        for _ in range(5):
            line.step()
        line.step(terminated=[False, True])
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.REBALANCING
        assert error.retryable
        line.expect_end()
    with Line(address) as line:
        line.open()
        line.init(SLOW)
        line.send(rlx.Reset(np.ones(1)))
        line.expect(rlx.EpisodeReturns)
        assert line.expect(rlx.Error).code is ErrorCode.REBALANCING


def test_end_of_training_reaches_all_clients_and_ends_the_server(serve) -> None:  # type: ignore[no-untyped-def]
    server, address = serve()
    with Line(address) as line:
        line.open()
        line.send(rlx.Init(line.observation(FINISH)))
        finished = line.expect(rlx.TrainingFinished)
        assert finished.global_step == 1000
        line.expect_end()
    wait_until(lambda: "training has finished" in server.stderr, "the server logs the end of training")
    with Line(address) as new_line:
        new_line.send(make_hello())
        new_line.expect(rlx.TrainingFinished)
    assert server.wait() == 0


def test_size_mismatch_names_the_configured_and_client_sizes(serve) -> None:  # type: ignore[no-untyped-def]
    _, address = serve(algorithm={"state_size": [4], "action_size": 3})
    with Line(address) as line:
        line.send(make_hello(observation_space=rlx.Box(shape=(7,))))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.SPACE_MISMATCH
        assert "[4]" in error.message
        assert "[7]" in error.message
    with Line(address) as line:
        line.send(make_hello(observation_space=rlx.Box(shape=(4,)), action_space=rlx.Discrete(6)))
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.SPACE_MISMATCH
        assert "3" in error.message
        assert "Discrete(6)" in error.message


def test_too_long_frame_is_refused_by_its_length(shared: Server) -> None:
    _, address = shared
    with Line(address) as line:
        limit = line.open().limits.max_frame_bytes
        assert limit <= 2**20
        line.socket.sendall(struct.pack(">I", limit + 1))  # the body is never sent
        error = line.expect(rlx.Error)
        assert error.code is ErrorCode.FRAME_TOO_LARGE
        assert str(limit) in error.message


def test_widest_allowed_observation_is_accepted(shared: Server) -> None:
    _, address = shared
    space = rlx.Box(shape=(100_000,))
    with Line(address) as line:
        line.open(observation_space=space)
        line.send(rlx.Init(batch(space, 1)))
        line.expect(rlx.Actions)
