"""A worker's exchange with the parameter server, compared to as many bytes through bare gRPC."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from relaax.cli.bench.service import MeasuredService
from relaax.cli.run.process import Process, StartError

START_SECONDS = 60.0


def exchange(service: MeasuredService, folder: Path, seconds: float) -> dict[str, Any]:
    """Return the result of `sync.compare`. `service` must have trained and stopped. Raises StartError."""
    fingerprint, parameters = service.fingerprint()
    description, output = folder / "fingerprint.json", folder / "sync.json"
    description.write_text(json.dumps(fingerprint, sort_keys=True, separators=(",", ":")), encoding="utf-8")
    raw = Process("raw-grpc", folder / "raw-grpc.log", server=True, secrets={})
    sync = Process("sync", folder / "sync.log", secrets=service.worker_secrets)
    try:
        server = service.parameter_server_again()
        raw.start([sys.executable, "-m", "relaax.cli.bench.raw_server", str(parameters)])
        raw_server = raw.wait_ready(START_SECONDS, threading.Event())
        arguments = [server, raw_server, str(description), str(seconds), str(output)]
        sync.start([sys.executable, "-m", "relaax.cli.bench.sync", *arguments])
        if not sync.wait(seconds + START_SECONDS):
            raise StartError(f"{sync.name} takes too long:\n{sync.last_words()}")
        if sync.exit_code() != 0:
            raise StartError(f"{sync.name} has ended ({sync.exit_code()}):\n{sync.last_words()}")
    finally:
        for process in (sync, raw):
            process.terminate()
            if not process.wait(2.0):
                process.kill()
                process.wait(1.0)
    result: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return result
