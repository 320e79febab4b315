"""The clients of protocol/clients with the address of another server."""

from __future__ import annotations

import http.server
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from relaax.rlx.connection import GRPC_PORT_ERROR
from support.client_languages import LANGUAGES, Language, cartpole
from support.processes import Processes

PATIENCE = 60.0  # much less than the 300 s for which clients retry


@contextmanager
def grpc_server() -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def web_server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


WRONG_PORTS = {
    "gRPC": (grpc_server, re.escape(GRPC_PORT_ERROR)),
    "HTTP": (web_server, r"the server's mistake: a frame of \d+ bytes; the limit is 65536: is it an RLX server\?"),
}


@pytest.mark.slow
@pytest.mark.checks("protocol", "tests/support/client_languages.py")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", WRONG_PORTS)
@pytest.mark.parametrize("name", LANGUAGES)
def test_wrong_port_is_reported_and_not_retried(
    built: Callable[[str], tuple[Language, Path]], processes: Processes, name: str, protocol: str
) -> None:
    """The first address has no listener. The client reports it before it tries the second one."""
    language, out = built(name)
    serve, sentence = WRONG_PORTS[protocol]
    with socket.socket() as closed, serve() as port:
        closed.bind(("127.0.0.1", 0))
        silent, wrong = f"127.0.0.1:{closed.getsockname()[1]}", f"127.0.0.1:{port}"
        command = cartpole(language, out)
        client = processes.start(*(word.replace("{address}", f"{silent},{wrong}") for word in command))
        assert client.wait(PATIENCE) == 1, client.report()
    refused, named = client.stderr.splitlines()
    question = r"is an RLX server running there\?; trying again in 0\.\d s"
    assert re.fullmatch(f"RLX: cannot connect to {silent}: (.*: )?{question}", refused)
    assert re.fullmatch(f"{wrong}: {sentence}", named)
