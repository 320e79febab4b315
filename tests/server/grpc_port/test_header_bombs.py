"""Headers that refer to each other, from callers without the token: memory is bounded and comes back."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from relaax.parameters.channel import Target, open_channel
from support import header_bombs
from support.keys import Keys
from support.processes import Processes, Running, wait_until
from support.service import PARAMETER_SERVER, REPLAY_SERVER

SECONDS, CONNECTIONS = 3.0, 8
STATUS = {
    PARAMETER_SERVER: "/relaax.v1.ParameterServerService/GetStatus",
    REPLAY_SERVER: "/relaax.v1.ReplayService/GetStatus",
}
PEAK_MEGABYTES, LEFT_MEGABYTES = 600, 100
"""Memory that a server may take beyond what it had, during the attack and afterwards."""
RATE = 20.0
PATIENCE = 90.0


class Honest:
    """A caller with the token who asks `RATE` times a second at most."""

    def __init__(self, target: Target, method: str) -> None:
        self.answers: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(target, method))
        self._thread.start()

    def _run(self, target: Target, method: str) -> None:
        with open_channel(target) as channel:
            call = channel.unary_unary(method)
            due = time.monotonic()
            while not self._stop.wait(due - time.monotonic()):
                due = max(due + 1 / RATE, time.monotonic() - 1 / RATE)
                with contextlib.suppress(grpc.RpcError):
                    call(b"", timeout=PATIENCE)
                    self.answers.append(time.monotonic())

    def share(self, since: float) -> float:
        """The answers of the last seconds, over the most there can be."""
        return sum(at > since for at in self.answers) / (RATE * (time.monotonic() - since))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def attacked(server: Running, address: str, reads: bool, ca: str = "") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, header_bombs.__file__, address, str(CONNECTIONS), str(SECONDS)]
    command += ["reads" if reads else "unread", *([ca] if ca else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bombs:
        try:
            yield bombs
        finally:
            bombs.kill()


@pytest.mark.parametrize(
    ("command", "tls", "reads"),
    [
        (PARAMETER_SERVER, False, False),
        pytest.param(PARAMETER_SERVER, True, True, marks=pytest.mark.slow),
        pytest.param(REPLAY_SERVER, False, True, marks=pytest.mark.slow),
    ],
    ids=["parameter-server", "parameter-server-tls-read", "replay-server-read"],
)
def test_headers_that_refer_to_each_other_take_bounded_memory(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    tls: bool,
    reads: bool,
) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)  # the server's own is meant
    keys = Keys(tmp_path / "keys")
    section: dict[str, Any] = {"bind": "127.0.0.1:0", "token-file": keys.path("parameter-server-token")}
    if tls:
        section |= {"tls-certificate": keys.path("server.pem"), "tls-key": keys.path("server-key.pem")}
    config = tmp_path / "service.yaml"
    name = "relaax-parameter-server" if command is PARAMETER_SERVER else "relaax-replay-server"
    config.write_text(json.dumps({name: section, "algorithm": {"path": "da3c"}}), encoding="utf-8")
    server, address = processes.start_server(*command, "--config", config)
    ca = keys.read("ca.pem") if tls else None
    honest = Honest(Target(address, keys.parameter_server_token, ca), STATUS[command])
    try:
        wait_until(lambda: honest.answers, "the honest caller is answered", PATIENCE)
        before = peak = _megabytes(server)
        with attacked(server, address, reads, keys.path("ca.pem") if tls else "") as bombs:
            while bombs.poll() is None:
                peak = max(peak, _megabytes(server))
                assert peak < before + PEAK_MEGABYTES, "it takes ever more memory"
                time.sleep(0.05)
            assert bombs.stdout is not None
            assert int(bombs.stdout.read().split()[0]) > CONNECTIONS
        wait_until(lambda: _megabytes(server) < before + LEFT_MEGABYTES, "memory comes back", PATIENCE, 0.2)
        wait_until(lambda: honest.share(time.monotonic() - 2) >= 0.85, "the honest caller has its rate", PATIENCE, 0.1)
    finally:
        honest.close()
    assert "are blocked for 60 s" in server.stderr
    assert "hpack" not in server.stderr


def _megabytes(server: Running) -> float:
    found: float = psutil.Process(server.pid).memory_info().rss / 2**20
    return found
