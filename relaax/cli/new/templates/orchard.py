#!/usr/bin/env python3
"""Serve the game to browsers of this computer: `main.py HOST:PORT NAME [N]`, where HOST:PORT is the RLX server.

The page connects to that server and plays N games. If the server requires a token, the page asks for it. HOST:PORT may
be several servers, separated by commas or in a file (@FILE). The page uses the next one after each failure.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import os
import secrets
import signal
import sys
from pathlib import Path

NO_SERVERS = ("check", "local", "probe", "random")  # instead of an address


class Handler(http.server.SimpleHTTPRequestHandler):
    """A handler for the files of this folder and the settings of the page. `address`: of the RLX servers."""

    def __init__(self, *arguments: object, address: str, settings: dict[str, object]) -> None:
        self._address, self._settings = address, settings
        super().__init__(*arguments, directory=str(Path(__file__).resolve().parent))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path != "/settings.json":
            super().do_GET()
            return
        try:
            settings = json.dumps({"servers": urls(self._address), **self._settings}).encode()
        except OSError as error:  # the file may be written later
            self.send_error(503, str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(settings)))
        self.end_headers()
        self.wfile.write(settings)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # a reload must show edited files
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Do not log requests."""


def urls(address: str) -> list[str]:
    """Return the URLs of the RLX servers. Raises OSError if the file of addresses cannot be read."""
    listed = Path(address[1:]).read_text("utf-8").split() if address.startswith("@") else address.split(",")
    return [url(one.strip()) for one in listed]


def url(address: str) -> str:
    """Return the URL of HOST[:PORT]. RELAAX_TLS or RELAAX_TLS_CA selects TLS, as for the client in Python."""
    if "://" in address:
        return address
    safe = os.environ.get("RELAAX_TLS") == "1" or os.environ.get("RELAAX_TLS_CA")
    port = "" if address.rpartition(":")[2].isdigit() and not address.endswith("]") else ":7001"
    return f"{'wss' if safe else 'ws'}://{address}{port}/"


def main() -> None:
    """Serve until a signal. Exit code 2: the port is not available, or the address names no server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="the RLX server")
    parser.add_argument("name", help="for logs and metrics")
    parser.add_argument("environments", nargs="?", type=int, default=16, help="games in the page")
    parser.add_argument("--port", type=int, default=8900, help="of the page")
    parser.add_argument("--seed", help="is not used: the browser draws its own random numbers")
    given, unknown = parser.parse_known_args()
    if given.address in NO_SERVERS:
        print(
            f"{given.name} is played in a page of a browser, which needs a server: "
            f"run `relaax run {given.name}.yaml` and open the page that it names",
            file=sys.stderr,
        )
        sys.exit(2)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    settings = {"name": given.name, "environments": given.environments, "run": secrets.token_hex(8)}
    handler = functools.partial(Handler, address=given.address, settings=settings)
    try:
        pages = http.server.ThreadingHTTPServer(("127.0.0.1", given.port), handler)
    except OSError as error:
        print(
            f"{given.name}: cannot serve the page at port {given.port}: {error.strerror}; choose another, "
            f'such as {given.port + 1}, with --port (in {given.name}.yaml: arguments: [--port, "{given.port + 1}"])',
            file=sys.stderr,
        )
        sys.exit(2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"open http://localhost:{pages.server_port}/", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        pages.serve_forever()


if __name__ == "__main__":
    main()
