from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from relaax.server import http_server
from relaax.server.address import AddressError, listen, require_private
from relaax.server.status import Families, Family, StatusServer, registry_of
from support.scrape import scraped

NUMBERS: tuple[Family[dict[str, float]], ...] = (
    Family("relaax_test_steps", "steps", lambda view: view.get("steps")),
    Family("relaax_test_calls_total", "calls", lambda view: {("Push", 'a "quote"\n'): view["calls"]}, ("method", "of")),
)


class Serving:
    """A status server whose answers the test sets."""

    def __init__(self) -> None:
        self.health = True
        self.view: dict[str, float] | None = {"calls": 2, "steps": 3}
        registry = registry_of(Families(NUMBERS, lambda: self.view))
        self.server = StatusServer(listen("127.0.0.1:0"), lambda: (self.health, {"step": 5}), registry)
        self.server.start()

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.server.address}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def serving() -> Iterator[Serving]:
    one = Serving()
    yield one
    one.server.close()


def test_health_page_reports_serving(serving: Serving) -> None:
    code, body = serving.get("/healthz")
    assert (code, json.loads(body)) == (200, {"serving": True, "step": 5})
    serving.health = False
    code, body = serving.get("/healthz?from=balancer")
    assert (code, json.loads(body)["serving"]) == (503, False)


def test_metrics_page_has_the_values(serving: Serving) -> None:
    values = scraped(f"http://{serving.server.address}")
    assert values["relaax_test_steps"] == 3
    assert values['relaax_test_calls_total{method="Push",of="a \\"quote\\"\\n"}'] == 2
    assert values["process_resident_memory_bytes"] > 1e6


def test_missing_values_are_omitted(serving: Serving) -> None:
    serving.view = {"calls": 0}
    assert "relaax_test_steps" not in scraped(f"http://{serving.server.address}")
    serving.view = None
    assert not [name for name in scraped(f"http://{serving.server.address}") if name.startswith("relaax_")]


def test_other_paths_and_methods_are_refused(serving: Serving) -> None:
    code, body = serving.get("/")
    assert code == 404
    assert "/healthz" in body and "/metrics" in body
    with pytest.raises(urllib.error.HTTPError, match="501"):
        urllib.request.urlopen(urllib.request.Request(f"http://{serving.server.address}/metrics", method="DELETE"))


def test_silent_connections_are_closed_after_a_timeout(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.5)
    host, _, port = serving.server.address.rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(http_server.MAX_REQUESTS)]
    try:
        for sock in silent:
            with contextlib.suppress(ConnectionError):  # it has timed out already
                sock.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        for sock in silent:
            with contextlib.suppress(ConnectionError):  # it had timed out before the data was sent
                assert sock.recv(1) == b"", "the connection has timed out"
        deadline = time.monotonic() + 30
        while True:
            try:
                assert serving.get("/healthz")[0] == 200
                break
            except OSError:  # the last of the connections is being closed
                assert time.monotonic() < deadline
    finally:
        for sock in silent:
            sock.close()


def test_closed_server_refuses_connections() -> None:
    one = Serving()
    one.server.close()
    with pytest.raises(urllib.error.URLError):
        one.get("/healthz")


@pytest.mark.parametrize("address", [None, "localhost:0", "127.0.0.1:9100", "[::1]:9100"])
def test_loopback_status_port_is_allowed(address: str | None) -> None:
    require_private(address, allow_anonymous=False)


def test_public_status_port_needs_allow_anonymous() -> None:
    with pytest.raises(AddressError, match=r"status_bind 0\.0\.0\.0:9100 .* pass --allow-anonymous"):
        require_private("0.0.0.0:9100", allow_anonymous=False)
    require_private("0.0.0.0:9100", allow_anonymous=True)
