"""The HTTP server of the live page: its files, the data as JSON, and the picture."""

from __future__ import annotations

import base64
import binascii
import json
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from relaax.cli.web.page import RunPage
from relaax.server.address import is_loopback
from relaax.server.http_server import BoundedHttpServer, QuietRequestHandler
from relaax.server.security.strikes import Strikes
from relaax.server.security.tokens import Token

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/uPlot.iife.min.js": ("uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/uPlot.min.css": ("uPlot.min.css", "text/css; charset=utf-8"),
}
"""Paths, files in `static`, and content types."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
UNAUTHORIZED = HTTPStatus.UNAUTHORIZED
MAX_WRONG_TOKENS = 20
"""Wrong tokens per minute before an address is refused for a minute."""


class PageServer(BoundedHttpServer):
    """A server of a page on the listening socket `sock`. With a token, each request must present it."""

    def __init__(
        self, sock: socket.socket, page: RunPage, token: Token | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(sock, _PageHandler, tls)
        self.page = page
        self.token = token
        self.strikes = Strikes(MAX_WRONG_TOKENS)


class _PageHandler(QuietRequestHandler):
    server: PageServer

    def do_GET(self) -> None:  # noqa: N802 - the name is of http.server
        refusal = self._refusal()
        if refusal is not None:
            status, text = refusal
            more = {"WWW-Authenticate": 'Basic realm="relaax", charset="UTF-8"'} if status == UNAUTHORIZED else {}
            self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode(), more)
            return
        asked = urlsplit(self.path)
        if asked.path in FILES:
            name, kind = FILES[asked.path]
            self._send(HTTPStatus.OK, kind, (STATIC / name).read_bytes())
        elif asked.path == "/data":
            query = parse_qs(asked.query)
            session, since = (query.get(key, [""])[-1] for key in ("session", "since"))
            state = self.server.page.data(session, int(since) if since.isdecimal() and len(since) < 19 else 0)
            self._send(HTTPStatus.OK, "application/json", json.dumps(state).encode())
        elif asked.path == "/picture" and (image := self.server.page.image()):
            self._send(HTTPStatus.OK, "image/png", image)
        else:
            where = b"this port serves the live page of a run at /\n"
            self._send(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", where)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] = {}) -> None:
        self.answer(status, kind, body, {**HEADERS, **more})

    def _refusal(self) -> tuple[HTTPStatus, str] | None:
        """Return why the request is refused; None if it is not."""
        token, host = self.server.token, str(self.client_address[0])
        if token is None:  # then only this machine is served
            named = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            if is_loopback(named):
                return None
            # A page of another origin may let its own name resolve to loopback.
            return HTTPStatus.FORBIDDEN, "the live page is at http://localhost, not under another name"
        if self.server.strikes.is_blocked(host):
            return HTTPStatus.TOO_MANY_REQUESTS, "too many wrong tokens from this address: wait for a minute"
        shown = _shown_token(self.headers.get("Authorization", ""))
        if shown is not None and token.matches(shown):
            return None
        if shown is not None:
            self.server.strikes.add(host)
        return UNAUTHORIZED, "the token of the live page is required, as the password of any user name"


def _shown_token(header: str) -> str | None:
    """Return the token in an Authorization header: after Bearer, or as the password after Basic; None if missing."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""
