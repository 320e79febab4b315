"""A worker's exchange with the parameter server, compared to bare gRPC with as many bytes, and with replay servers."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relaax.cli.bench.service import MeasuredService
from relaax.supervision.process import Process, StartError

START_SECONDS = 60.0


def exchange(service: MeasuredService, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the result of `sync.compare`. `service` must have trained and stopped. Raises StartError."""
    fingerprint, parameters = service.fingerprint()
    raw = Process("raw-grpc", folder / "raw-grpc.log", server=True, secrets={})
    try:
        server = service.parameter_server_again()
        raw.start([sys.executable, "-m", "relaax.cli.bench.raw_server", str(parameters)])
        arguments = [server, raw.wait_ready(START_SECONDS, threading.Event()), _written(fingerprint, folder)]
        return _measured("sync", arguments, service.worker_secrets, folder, seconds)
    finally:
        _end(raw)


def replay_exchange(service: MeasuredService, folder: Path, seconds: float) -> dict[str, Any] | None:
    """Return the result of `replay_load.load`; None if there are no replay servers.

    `service` must have trained and stopped. Raises StartError.
    """
    servers = service.replay_servers_again()
    if not servers:
        return None
    fingerprint, _ = service.fingerprint()
    arguments = [",".join(servers), str(service.configuration), _written(fingerprint, folder)]
    return _measured("replay_load", arguments, service.replay_secrets, folder, seconds)


def _written(fingerprint: Mapping[str, Any], folder: Path) -> str:
    """Write a fingerprint to a file; return its name."""
    description = folder / "fingerprint.json"
    description.write_text(json.dumps(fingerprint, sort_keys=True, separators=(",", ":")), encoding="utf-8")
    return str(description)


def _measured(
    module: str, arguments: Sequence[str], secrets: Mapping[str, str], folder: Path, seconds: float
) -> dict[str, Any]:
    """Return what a module of this package measures in a process of its own. Raises StartError."""
    output = folder / f"{module}.json"
    process = Process(module, folder / f"{module}.log", secrets=secrets)
    try:
        process.start([sys.executable, "-m", f"relaax.cli.bench.{module}", *arguments, str(seconds), str(output)])
        if not process.wait(seconds + START_SECONDS):
            raise StartError(f"{process.name} takes too long:\n{process.last_words()}")
        if process.exit_code() != 0:
            raise StartError(f"{process.name} has ended ({process.exit_code()}):\n{process.last_words()}")
    finally:
        _end(process)
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return result


def _end(process: Process) -> None:
    process.terminate()
    if not process.wait(2.0):
        process.kill()
        process.wait(1.0)
