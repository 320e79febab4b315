"""Calls without their messages are ended and do not block other calls."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from relaax.server.parameter_server.command.credentials import JOIN
from relaax.server.ports import request_reader
from relaax.server.ports.request_reader import OPEN_UNFINISHED, THREADS, UNFINISHED
from relaax.server.security import strikes as disconnection_log
from relaax.server.security.strikes import DisconnectionLog
from support.parameter_servers import gradient, parameter_client, registration, running
from support.processes import wait_until
from support.raw_grpc import CHECK, PUSH, RawCaller, StuckCalls
from support.scrape import health, scraped

PREFIX = "relaax_parameter_server_"
PATIENCE = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING


def health_status(address: str) -> int | None:
    """Return the status; None if the server ended the call, as it may while its address has incomplete calls."""
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise
            return None
        status: int = answer.status
        return status


@pytest.mark.parametrize("method", [CHECK, PUSH], ids=["check", "push"])
@pytest.mark.parametrize(("calls", "connections"), [(8, 1), (64, 1), (1, 64)])
def test_training_continues_beside_calls_without_messages(method: str, calls: int, connections: int) -> None:
    with running() as server, parameter_client(server.address, unavailable_after=PATIENCE) as client:
        client.register(registration())
        client.pull()
        with StuckCalls(server.address, method, calls, connections, again=0.1):
            for _ in range(50):
                client.push(gradient(1), env_steps=1)
            assert server.version == 50
            wait_until(lambda: health_status(server.address) == SERVING, "the health service answers SERVING", PATIENCE)


def test_call_without_its_message_is_ended_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_reader, "OPEN_SECONDS", 0.1)
    monkeypatch.setattr(request_reader, "MESSAGE_SECONDS", 0.2)
    monkeypatch.setattr(disconnection_log, "SECONDS", 1.0)
    caplog.set_level(logging.WARNING, disconnection_log.__name__)
    with (
        running(status_bind="127.0.0.1:0") as server,
        RawCaller(server.address) as caller,
        RawCaller(server.address) as another,
    ):
        streams = [caller.begin(CHECK), caller.begin(PUSH)]
        begun = another.begin(PUSH)
        another.send(begun, b"\0\0\0\1\0" + bytes(100))  # 100 of 256 bytes
        for stream in streams:
            assert caller.ended(stream)
        assert another.ended(begun)
        wait_until(lambda: "Push" in caplog.text, "the call is logged", PATIENCE)
        values = scraped(f"http://{server.server.status_address}")
        assert values[f'{PREFIX}stopped_calls_total{{reason="late"}}'] == 3
        assert values[f'{PREFIX}calls_total{{code="CANCELLED",method="Push"}}'] == 2
        assert values[f"{PREFIX}unfinished_calls"] == 0
    assert "from 127.0.0.1: " in caplog.text
    assert "1 x Check without its message for 0.1 s" in caplog.text
    times = [record.created for record in caplog.records]
    assert all(later - earlier > 0.9 for earlier, later in itertools.pairwise(times)), "once a second"


def test_fifth_pending_call_of_a_connection_is_refused() -> None:
    with running() as server, contextlib.ExitStack() as stack:
        channel = stack.enter_context(grpc.insecure_channel(server.address))
        silent = threading.Event()
        stack.callback(silent.set)
        wait = lambda: iter(lambda: silent.wait() and b"", b"")  # noqa: E731
        calls = [channel.stream_unary(PUSH).future(wait(), timeout=PATIENCE) for _ in range(UNFINISHED)]
        wait_until(lambda: server.server.protection.reader.unfinished == UNFINISHED, "the calls wait", PATIENCE)
        with pytest.raises(grpc.RpcError, match="4 calls of this connection have not sent their messages") as refused:
            channel.stream_unary(PUSH)(wait(), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not any(call.done() for call in calls)


def test_oldest_call_of_the_busiest_address_is_ended() -> None:
    with running() as server, RawCaller(server.address, "127.0.0.2") as other, contextlib.ExitStack() as stack:
        reads = server.server.protection.reader
        kept = other.begin(CHECK)
        wait_until(lambda: reads.unfinished == 1, "the call waits", PATIENCE)
        crowd = [stack.enter_context(RawCaller(server.address)) for _ in range(OPEN_UNFINISHED)]
        crowd[0].begin(CHECK)
        wait_until(lambda: reads.unfinished == 2, "the oldest of the crowd waits", PATIENCE)
        for caller in crowd[1:]:
            caller.begin(CHECK)
        assert crowd[0].ended(1)
        other.send(kept, b"\0\0\0\0\0", ends=True)
        assert other.ended(kept)
        assert reads.ended["crowded"] == 1


def test_silent_stream_is_ended_but_not_a_health_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "MESSAGE_SECONDS", 0.2)
    with running() as server, grpc.insecure_channel(server.address) as channel:
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert next(watched).status == SERVING
        silent = threading.Event()
        requests = (silent.wait() and reflection_pb2.ServerReflectionRequest() for _ in range(1))
        answers = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests, timeout=PATIENCE)
        with pytest.raises(grpc.RpcError) as ended:
            list(answers)
        silent.set()
        assert ended.value.code() is grpc.StatusCode.CANCELLED
        server.server.health.serve(False)
        assert next(watched).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watched.cancel()


def test_jammed_server_reports_that_it_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "JAM_SECONDS", 0.2)
    monkeypatch.setattr(request_reader, "MESSAGE_SECONDS", PATIENCE)
    with running(status_bind="127.0.0.1:0") as server:
        url = f"http://{server.server.status_address}"
        assert health(url)[0] == 200
        with StuckCalls(server.address, PUSH, 1, THREADS + 1):
            wait_until(lambda: health(url)[0] == 503, "the server is jammed", PATIENCE)
            assert scraped(url)[f"{PREFIX}serving"] == 0
        wait_until(lambda: health(url)[0] == 200, "the server serves again", PATIENCE)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [(b"\xff", "request cannot be decoded"), (None, "needs a message, but the call has none")],
    ids=["bad", "none"],
)
def test_invalid_message_is_refused(message: bytes | None, sentence: str) -> None:
    with running() as server, grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError, match=sentence) as refused:
            channel.stream_unary(PUSH)(iter([] if message is None else [message]), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_join_method_has_its_full_name() -> None:
    assert JOIN == "/relaax.v1.CoordinationService/Join"


def test_stopped_calls_are_logged_once_a_minute_per_address(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = DisconnectionLog(lambda: now)
    for _ in range(3):
        log.add("10.0.0.1", "a")
    log.add("10.0.0.2", "b")
    log.write()
    assert [record.getMessage().partition(", from ")[2] for record in caplog.records] == [
        "10.0.0.1: 3 x a",
        "10.0.0.2: 1 x b",
    ]
    for _ in range(2):
        now += 30.0
        log.add("10.0.0.1", "c")
        log.write()
    assert [record.getMessage().partition(", from ")[2] for record in caplog.records[2:]] == ["10.0.0.1: 2 x c"]
