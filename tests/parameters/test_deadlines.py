"""Deadlines of all unary gRPC calls of the project, so that a silent server cannot block a caller without end."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

import relaax
from relaax.cli.app import app
from relaax.cli.live.top import ServiceWatcher
from relaax.cli.run.progress import ProgressReader
from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.command import server as server_module
from relaax.server.ports.port import CallCounter
from relaax.transport.channel import Target
from support.parameter_servers import gradient, parameter_client, registration, running

METHODS = {method.name for method in pb.DESCRIPTOR.services_by_name["ParameterServerService"].methods}
LONGEST = 60.0


def test_calls_in_the_source_pass_a_timeout() -> None:
    found = 0
    for path in Path(relaax.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        if "_pb2" in path.name or not any(f".{name}" in text for name in METHODS | {"Check"}):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            called = node.func.value if node.func.attr in ("future", "with_call") else node.func
            if isinstance(called, ast.Attribute) and called.attr in METHODS | {"Check"}:
                if isinstance(called.value, ast.Attribute) and called.value.attr == "_servicer":
                    continue  # the server's side
                found += 1
                given = {keyword.arg for keyword in node.keywords}
                assert "timeout" in given, f"{path}:{node.lineno}: {called.attr} has no timeout"
    assert found >= 3


def test_servers_receive_calls_with_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds: dict[str, list[float | None]] = defaultdict(list)

    class DeadlineRecorder(CallCounter):
        def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
            handler = super().intercept_service(continuation, handler_call_details)
            answer, method = handler.unary_unary, handler_call_details.method.rpartition("/")[2]

            def noted(request: Any, context: grpc.ServicerContext) -> Any:
                seconds[method].append(context.time_remaining())
                return answer(request, context)

            return grpc.unary_unary_rpc_method_handler(noted, handler.request_deserializer, handler.response_serializer)

    monkeypatch.setattr(server_module, "CallCounter", DeadlineRecorder)
    with running() as server:
        with parameter_client(server.address) as parameters_client:
            parameters_client.register(registration())
            parameters_client.pull()
            parameters_client.push(gradient(1), env_steps=1)
            parameters_client.metrics.scalar("a/b", 1.0)
            parameters_client.flush()
        reader = ProgressReader()
        reader.poll(server.address)
        reader.close()
        watcher = ServiceWatcher([Target(server.address)])
        watcher.snapshot()
        watcher.picture()
        watcher.close()
        CliRunner().invoke(app, ["set", server.address, "gravity=1"])
        assert set(seconds) == METHODS
        assert all(left is not None and left <= LONGEST for times in seconds.values() for left in times), seconds
