"""An S3 server in its own process, and a proxy of it that injects faults."""

from __future__ import annotations

import http.client
import itertools
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
from botocore.config import Config

from relaax.checkpoint.s3 import AwsKeys, S3Store
from support.processes import Processes, Running

KEYS = AwsKeys("anaccesskey", "a/secret+key")
_STATUS = {"InternalError": 500, "SlowDown": 503, "ExpiredToken": 400, "AccessDenied": 403, "NotImplemented": 501}
SLOW_SECONDS = 3.6
_numbers = itertools.count(1)

_MAIN = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("s3 listening on %s:%d" % server.get_host_and_port(), flush=True)
server._thread.join()
"""


@dataclass
class Fault:
    """A fault of the next `times` requests for which `hits` returns true.

    `kind` is an error code of S3, which is the answer, or one of these words:
    - `reset`: the connection is reset.
    - `lost`: the request is executed, then the connection is reset.
    - `slow`: the request is executed after SLOW_SECONDS.
    - `stall`: the request is not answered, and the connection is reset when the proxy is healed.
    - `half`: only the first half of the answer is sent.
    """

    kind: str
    times: float = float("inf")
    hits: Callable[[str, str], bool] = lambda method, path: True


class S3Proxy:
    """An HTTP proxy on a free port. `requests`: method and path, in order. `keys`: the access keys of all requests."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.requests: list[tuple[str, str]] = []
        self.keys: set[str] = set()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # S3 checks and writes atomically; the server behind this proxy may not
        self._healed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 60

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: proxy._handle(self)
                raise AttributeError(name)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the tests make clients disconnect during a request

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def __enter__(self) -> S3Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.heal()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def fail(self, kind: str, times: float = float("inf"), hits: Callable[[str, str], bool] | None = None) -> Fault:
        """Inject a fault from now on."""
        fault = Fault(kind, times, hits or Fault.hits)
        with self._lock:
            self._healed.clear()
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()
            self._healed.set()

    def _fault(self, method: str, path: str) -> str | None:
        with self._lock:
            self.requests.append((method, path))
            for fault in self._faults:
                if fault.times > 0 and fault.hits(method, path):
                    fault.times -= 1
                    return fault.kind
        return None

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.keys.update(re.findall(r"Credential=([^/]+)/", request.headers.get("Authorization") or ""))
        kind = self._fault(request.command, request.path)
        if kind == "slow":
            time.sleep(SLOW_SECONDS)
        if kind == "stall":
            self._healed.wait(120)
            _reset(request)
        elif kind == "reset":
            _reset(request)
        elif kind in _STATUS:
            text = f"<Error><Code>{kind}</Code><Message>as the test wants it</Message></Error>".encode()
            _answer(request, _STATUS[kind], {"Content-Type": "application/xml"}, text)
        else:
            status, headers, answer = self._forward(request, body)
            if kind == "lost":
                _reset(request)
            elif kind == "half":
                _answer(request, status, headers, answer, len(answer) // 2)
            else:
                _answer(request, status, headers, answer)

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("connection", "expect")}
        with self._writing:
            connection = http.client.HTTPConnection(self.target, timeout=30)
            try:
                connection.request(request.command, request.path, body, headers)
                answer = connection.getresponse()
                return answer.status, dict(answer.getheaders()), answer.read()
            finally:
                connection.close()


class S3Server:
    """The process of the server, and its buckets."""

    def __init__(self, running: Running, address: str) -> None:
        self.running = running
        self.address = address
        self.client: Any = boto3.Session(KEYS.access, KEYS.secret, region_name="us-east-1").client(
            "s3", endpoint_url=f"http://{address}", config=Config(retries={"total_max_attempts": 5})
        )

    def bucket(self) -> str:
        """Create a bucket and return its name."""
        name = f"models-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        return name

    def store(self, bucket: str | None = None, endpoint: str | None = None, quick: bool = False) -> S3Store:
        """Return a store in a bucket, by default in a new one."""
        return S3Store(bucket or self.bucket(), "some/run", lambda: KEYS, endpoint or f"http://{self.address}", quick)


@contextmanager
def _without_proxy() -> Iterator[None]:
    """Let this process and its children reach loopback directly, also if the machine has an HTTP proxy."""
    names = ("no_proxy", "NO_PROXY")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "127.0.0.1,localhost"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server, and end it at the end of the block."""
    with _without_proxy(), Processes(folder) as processes:
        running = processes.start(sys.executable, "-c", _MAIN)
        server = S3Server(running, running.wait_for_address())
        server.client.list_buckets()  # the first request takes seconds, because the server imports libraries
        yield server
        server.client.close()


def keys_file(folder: Path) -> Path:
    """Write a file for --aws-keys."""
    path = folder / "keys.yaml"
    path.write_text(f"access: {KEYS.access}\nsecret: {KEYS.secret}\n")
    path.chmod(0o600)
    return path


def _answer(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, cut: int | None = None
) -> None:
    request.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in ("content-length", "connection", "transfer-encoding"):
            request.send_header(name, value)
    length = headers.get("Content-Length") if request.command == "HEAD" else str(len(body))
    request.send_header("Content-Length", length or "0")
    request.end_headers()
    if request.command != "HEAD" and status not in (204, 304):
        request.wfile.write(body if cut is None else body[:cut])
    if cut is not None:
        request.wfile.flush()
        request.close_connection = True


def _reset(request: BaseHTTPRequestHandler) -> None:
    with suppress(OSError):
        request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.close_connection = True
