"""The process that serves an RLX server's status port (see `status`)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

import psutil

from relaax import __version__
from relaax.metrics.system import available_memory
from relaax.server.command.logs import configure_logging
from relaax.server.rlx_server.child_process import inherited_descriptors
from relaax.server.status import Families, Family, StatusServer, registry_of

SILENT_SECONDS = 10.0
"""A server that sends no sample for this long counts as not serving: it is stuck or stopped."""

Sample = Mapping[str, Any]


def _family(name: str, help_: str, label: str | None = None) -> Family[Sample]:
    """Return the family of the metric `relaax_rlx_server_NAME`. With a label, it has one value for each label value."""
    key = name.removesuffix("_total")
    by_client = label == "client"

    def read(sample: Sample) -> Any:
        if by_client:
            return {(client,): figures[key.removeprefix("client_")] for client, figures in sample["clients"].items()}
        return {(each,): number for each, number in sample[key].items()} if label else sample[key]

    return Family(f"relaax_rlx_server_{name}", help_ + ", by client" * by_client, read, (label,) if label else ())


FAMILIES = (
    _family("serving", "1 if connections are accepted, otherwise 0"),
    _family("uptime_seconds", "seconds since the start of the process"),
    _family("workers", "processes that serve a client, or may do so later"),
    _family("free_places", "number of further connections that max_workers and memory allow"),
    _family("handshaking", "workers whose client is neither admitted nor refused yet"),
    _family("waiting", "connections without a worker, by what they wait for", "for"),
    _family("connections_total", "connections accepted"),
    _family("forks_total", "worker processes started"),
    _family("admissions_total", "clients admitted"),
    _family("refusals_total", "connections refused, by reason", "reason"),
    _family("worker_failures_total", "workers that failed or were killed"),
    _family("training_finished", "1 if training has ended, otherwise 0"),
    _family("client_connections", "admitted connections", "client"),
    _family("client_environments", "environments of admitted connections", "client"),
    _family(
        "client_stuck",
        "connections that have waited for the client for ten seconds in the middle of a message",
        "client",
    ),
    _family("client_steps_total", "environment steps", "client"),
    _family("client_bytes_total", "bytes received and sent", "client"),
    _family("client_throttled_seconds_total", "seconds that quotas delayed connections", "client"),
    _family("client_refusals_total", "connections refused by quotas, or because the token was revoked", "client"),
    _family("workers_memory_bytes", "resident memory of all workers; shared memory counts in each"),
    _family("available_memory_bytes", "memory available to processes on this machine"),
)


class Samples:
    """The latest sample of the server, read from the pipe."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._latest: Sample | None = None
        self._received_at = time.monotonic()

    def read(self, line: IO[str]) -> None:
        """Read samples until the pipe ends."""
        for sample in line:
            self._latest, self._received_at = json.loads(sample), time.monotonic()

    def view(self) -> Sample | None:
        """Return the latest sample and current measurements of memory; None before the first sample."""
        if self._latest is None:
            return None
        return {
            **self._latest,
            "serving": self.serving,
            "workers_memory_bytes": self._workers_memory(),
            "available_memory_bytes": available_memory(),
        }

    @property
    def serving(self) -> bool:
        """Whether the latest sample is recent and reports that the server is serving."""
        silent = time.monotonic() - self._received_at > SILENT_SECONDS
        return self._latest is not None and bool(self._latest["serving"]) and not silent

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Return the status for /healthz."""
        fields: dict[str, Any] = {"server": "relaax-rlx-server", "version": __version__}
        if self._latest is not None:
            fields |= {"workers": self._latest["workers"], "training_finished": self._latest["training_finished"]}
            fields["silent_seconds"] = round(time.monotonic() - self._received_at, 1)
        return self.serving, fields

    def _workers_memory(self) -> int:
        total = 0
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._server).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += child.memory_info().rss if child.pid != os.getpid() else 0
        return total


def main() -> None:
    """Serve status. Arguments: server's process id, log level, log format, and descriptors of status port and pipe."""
    port, line = inherited_descriptors(2)
    server, level, format_ = sys.argv[-5:-2]
    configure_logging(level, format_)
    samples = Samples(int(server))
    registry = registry_of(Families(FAMILIES, samples.view), pid=lambda: int(server))
    status = StatusServer(socket.socket(fileno=port), samples.health, registry)
    threading.current_thread().name = "line"
    status.start()
    with os.fdopen(line, encoding="utf-8") as lines:
        samples.read(lines)
    logging.shutdown()
    os._exit(0)  # without waiting for pending answers
