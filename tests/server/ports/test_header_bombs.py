"""Header bombs (headers that refer to each other) from callers without the token: memory is bounded and freed."""

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

from relaax.transport.channel import Target, open_channel
from support import header_bombs
from support.keys import Keys
from support.processes import Processes, Running, wait_until
from support.service import PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER
from support.trainee import Training

CHECKED = ("relaax/server/ports", "relaax/server/security", "relaax/transport", "tests/support/header_bombs.py")
CONNECTIONS = 8
ANSWERS = 40
"""Calls of the honest caller that must be answered after the attack."""
STATUS = {
    PARAMETER_SERVER: "/relaax.v1.ParameterServerService/GetStatus",
    REPLAY_SERVER: "/relaax.v1.ReplayService/GetStatus",
}
PEAK_MEGABYTES, LEFT_MEGABYTES = 600, 100
"""Megabytes that a server may use in addition, during the attack and afterwards."""
RATE = 20.0
PATIENCE = 90.0
SECONDS = 4.0
MEMORY_SHARE, GRPC_SHARE, GRPC_SHARE_OF_MANY = 0.85, 0.6, 0.3
"""Smallest share of its usual steps that a training client keeps during an attack: by shared memory, and by gRPC
beside one or 50 addresses. The first connections cost processor time, which takes longer on a busy machine.
"""


class Honest:
    """A caller with the token that makes at most `RATE` calls a second."""

    def __init__(self, target: Target, method: str) -> None:
        self.answers = 0
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
                    self.answers += 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def attacked(
    address: str, mode: str, ca: str = "", seconds: float = PATIENCE, addresses: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, header_bombs.__file__, address, str(CONNECTIONS), str(seconds), str(addresses)]
    command += [mode, *([ca] if ca else [])]
    with subprocess.Popen(command) as bombs:
        try:
            yield bombs
        finally:
            bombs.kill()


@pytest.mark.slow
@pytest.mark.checks(*CHECKED)
@pytest.mark.parametrize(
    ("command", "tls", "reads"),
    [(PARAMETER_SERVER, False, False), (PARAMETER_SERVER, True, True), (REPLAY_SERVER, False, True)],
    ids=["parameter-server", "parameter-server-tls-read", "replay-server-read"],
)
def test_header_bombs_use_bounded_memory(
    processes: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    short: bool,
    command: tuple[str, ...],
    tls: bool,
    reads: bool,
) -> None:
    if short and tls:
        pytest.skip("--short runs this without TLS only")
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)  # use the server's own setting
    keys = Keys(tmp_path / "keys")
    section: dict[str, Any] = {"bind": "127.0.0.1:0", "token-file": keys.path("parameter-server-token")}
    if tls:
        section |= {"tls-certificate": keys.path("server.pem"), "tls-key": keys.path("server-key.pem")}
    config = tmp_path / "service.yaml"
    name = "relaax-parameter-server" if command is PARAMETER_SERVER else "relaax-replay-server"
    config.write_text(json.dumps({name: section, "algorithm": {"path": "da3c"}}), encoding="utf-8")
    server, address = processes.start_server(*command, "--config", config, fresh=True)
    ca = keys.read("ca.pem") if tls else None
    honest = Honest(Target(address, keys.parameter_server_token, ca), STATUS[command])
    try:
        wait_until(lambda: honest.answers, "the honest caller is answered", PATIENCE)
        before = _megabytes(server)
        with attacked(address, "reads" if reads else "unread", keys.path("ca.pem") if tls else "") as bombs:

            def blocked() -> bool:
                assert _megabytes(server) < before + PEAK_MEGABYTES, "memory use keeps growing"
                return "are blocked for 60 s" in server.stderr and bombs.poll() is None

            wait_until(blocked, "the address is blocked", PATIENCE)
        wait_until(lambda: _megabytes(server) < before + LEFT_MEGABYTES, "memory is freed", PATIENCE, 0.2)
        enough = honest.answers + ANSWERS
        wait_until(lambda: honest.answers >= enough, "the honest caller is answered", PATIENCE)
    finally:
        honest.close()
    assert "hpack" not in server.stderr


@pytest.mark.slow
@pytest.mark.checks(*CHECKED)
@pytest.mark.parametrize(
    ("bridge", "mode", "addresses", "min_share"),
    [
        ("grpc", "leaves", 1, GRPC_SHARE),
        ("grpc", "unread", 50, GRPC_SHARE_OF_MANY),
        ("auto", "leaves", 1, MEMORY_SHARE),
        ("auto", "unread", 50, MEMORY_SHARE),
    ],
)
def test_training_client_keeps_its_speed_during_header_bombs(
    processes: Processes, tmp_path: Path, short: bool, bridge: str, mode: str, addresses: int, min_share: float
) -> None:
    if short and (bridge, addresses) != ("grpc", 50):
        pytest.skip("--short runs only gRPC with 50 addresses")
    keys = Keys(tmp_path / "keys")
    config = tmp_path / "service.yaml"
    document = {
        "relaax-parameter-server": {"bind": "127.0.0.1:0", "token-file": keys.path("parameter-server-token")},
        "relaax-rlx-server": {
            "bind": "127.0.0.1:0",
            "timeout": None,
            "parameter-server-token-file": keys.path("parameter-server-token"),
        },
        "algorithm": {"path": "da3c", "network": {"dense": [8]}, "max_global_step": 10_000_000},
    }
    config.write_text(json.dumps(document), encoding="utf-8")
    server, parameter_server = processes.start_server(*PARAMETER_SERVER, "--config", config)
    options = ("--parameter-server", parameter_server, "--bridge", bridge)
    _, address = processes.start_server(*RLX_SERVER, "--config", config, *options)
    training = Training(address, rate=RATE, response_timeout=PATIENCE)
    try:
        training.expect_more()
        usual = steps_in(SECONDS, training)
        with attacked(parameter_server, mode, seconds=2 * PATIENCE, addresses=addresses) as bombs:
            # With many addresses, a busy machine may serve too few connections a minute to block any of them.
            sign = "are blocked for 60 s" if addresses == 1 else "refused a call from 127.0.0."
            wait_until(lambda: sign in server.stderr, sign, PATIENCE)
            kept = f"{min_share:.0%} of {usual} steps in {SECONDS:g} s"
            wait_until(lambda: steps_in(SECONDS, training) >= min_share * usual, kept, PATIENCE)
            assert bombs.poll() is None, "the attack is still running"
    finally:
        training.stop()


def steps_in(seconds: float, training: Training) -> int:
    before = training.steps
    time.sleep(seconds)
    return training.steps - before


def _megabytes(server: Running) -> float:
    found: float = psutil.Process(server.pid).memory_info().rss / 2**20
    return found
