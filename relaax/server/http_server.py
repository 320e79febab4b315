"""An HTTP server with bounds: each request in a thread, few at a time, each for a limited time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from relaax import __version__

MAX_REQUESTS = 16
REQUEST_SECONDS = 10.0


class BoundedHttpServer(ThreadingHTTPServer):
    """A server on the listening socket `sock`, which it owns. It logs nothing.

    At most `MAX_REQUESTS` connections are open, each for at most `REQUEST_SECONDS`. `tls`: the context of TLS, or None.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(
        self, sock: socket.socket, handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(sock.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self._tls = tls
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def get_request(self) -> tuple[socket.socket, Any]:
        accepted, peer = super().get_request()
        if self._tls is None:
            return accepted, peer
        # The request's thread does the handshake, with its first read.
        return self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False), peer

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            if len(self._since) >= MAX_REQUESTS:
                return False  # the caller closes it
            self._since[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close requests that exceed `REQUEST_SECONDS`, even if bytes still arrive. Called several times a second."""
        now = time.monotonic()
        with self._lock:
            for request, since in self._since.items():
                if now - since > REQUEST_SECONDS:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the only expected error is a client that disconnects during an answer."""


class QuietRequestHandler(BaseHTTPRequestHandler):
    """A handler of GET and HEAD that logs no requests. Subclasses implement `do_GET` with `answer`."""

    timeout = REQUEST_SECONDS
    server_version = f"relaax/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        """Send an answer of the content type `kind`; without its body to a HEAD request."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a request every few seconds would flood the log."""
