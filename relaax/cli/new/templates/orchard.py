#!/usr/bin/env python3
"""Serve the game to browsers of this computer: `main.py HOST:PORT NAME [N]`, where HOST:PORT is the RLX server.

The page connects to that server by itself and plays N games. It asks for a token where the server wants one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import json
import signal
import sys
from pathlib import Path


class Handler(http.server.SimpleHTTPRequestHandler):
    """The files of this folder, and the settings of the page."""

    def __init__(self, *arguments: object, settings: bytes) -> None:
        self._settings = settings
        super().__init__(*arguments, directory=str(Path(__file__).resolve().parent))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path != "/settings.json":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self._settings)))
        self.end_headers()
        self.wfile.write(self._settings)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # so that a reload shows what was edited
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""


def main() -> None:
    """Serve until a signal comes. Exit code 2: the port cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="the RLX server")
    parser.add_argument("name", help="for logs and metrics")
    parser.add_argument("environments", nargs="?", type=int, default=16, help="games in the page")
    parser.add_argument("--port", type=int, default=8900, help="of the page")
    parser.add_argument("--seed", help="is not used: the browser draws its own random numbers")
    given = parser.parse_args()
    server = given.address if "://" in given.address else f"ws://{given.address}/"
    settings = json.dumps({"server": server, "name": given.name, "environments": given.environments}).encode()
    handler = functools.partial(Handler, settings=settings)
    try:
        pages = http.server.ThreadingHTTPServer(("127.0.0.1", given.port), handler)
    except OSError as error:
        print(f"{given.name}: cannot serve the page at port {given.port}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"open http://localhost:{pages.server_port}/", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        pages.serve_forever()


if __name__ == "__main__":
    main()
