"""The process that serves an RLX server's status port (see `status`): it has threads, the server has none."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

import psutil

from relaax import __version__
from relaax.metrics.memory import available_memory
from relaax.server.logs import configure_logging
from relaax.server.metric_families import Families, Family, registry_of
from relaax.server.rlx_server.child_process import GROUP_SIGNALS
from relaax.server.status import StatusServer

SILENT_SECONDS = 10.0
"""A server that sends no sample for this long is stuck or stopped, so it is not serving."""

Sample = Mapping[str, Any]


def _labelled(name: str) -> Any:
    return lambda sample: {(label,): number for label, number in sample[name].items()}


def _plain(name: str) -> Any:
    return lambda sample: sample[name]


def _of_clients(name: str, help_: str) -> Family[Sample]:
    """Return the family of a figure of each client."""
    key = name.removesuffix("_total")

    def read(sample: Sample) -> Any:
        return {(client,): figures[key] for client, figures in sample["clients"].items()}

    return Family(f"client_{name}", f"{help_}, by client", read, ("client",))


def _family(name: str, help_: str, label: str | None = None) -> Family[Sample]:
    key = name.removesuffix("_total")
    return Family(name, help_, _labelled(key) if label else _plain(key), (label,) if label else ())


_FAMILIES = (
    _family("serving", "1 if connections are accepted, otherwise 0"),
    _family("uptime_seconds", "seconds since the start of the process"),
    _family("workers", "processes that serve a client, or may yet do so"),
    _family("free_places", "connections that there is room for, by max_workers and memory"),
    _family("handshaking", "workers whose client is neither admitted nor refused yet"),
    _family("waiting", "connections without a worker, by what they wait for", "for"),
    _family("connections_total", "connections accepted"),
    _family("forks_total", "worker processes started"),
    _family("admissions_total", "clients admitted"),
    _family("refusals_total", "connections refused, by reason", "reason"),
    _family("worker_failures_total", "workers that failed or were killed"),
    _family("training_finished", "1 if training has ended, otherwise 0"),
    _of_clients("connections", "admitted connections"),
    _of_clients("environments", "environments of admitted connections"),
    _of_clients("stuck", "connections that have waited for their client for ten seconds, in a message or an answer"),
    _of_clients("steps_total", "environment steps"),
    _of_clients("bytes_total", "bytes received and sent"),
    _of_clients("throttled_seconds_total", "seconds that quotas delayed connections"),
    _of_clients("refusals_total", "connections refused by quotas, or because the token was revoked"),
    _family("workers_memory_bytes", "total resident memory of all workers: shared memory counts for each"),
    _family("available_memory_bytes", "memory available to processes on this machine"),
)
FAMILIES = tuple(replace(family, name=f"relaax_rlx_server_{family.name}") for family in _FAMILIES)


class Samples:
    """The latest figures of the server, read from its line."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._latest: Sample | None = None
        self._heard = time.monotonic()

    def read(self, line: IO[str]) -> None:
        """Read samples until the line ends."""
        for said in line:
            self._latest, self._heard = json.loads(said), time.monotonic()

    def view(self) -> Sample | None:
        """Return the latest sample with figures that are measured now; None before the first."""
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
        """Whether the last sample says so and is recent."""
        silent = time.monotonic() - self._heard > SILENT_SECONDS
        return self._latest is not None and bool(self._latest["serving"]) and not silent

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Return the status for /healthz."""
        more: dict[str, Any] = {"server": "relaax-rlx-server", "version": __version__}
        if self._latest is not None:
            more |= {"workers": self._latest["workers"], "training_finished": self._latest["training_finished"]}
            more["silent_seconds"] = round(time.monotonic() - self._heard, 1)
        return self.serving, more

    def _workers_memory(self) -> int:
        total = 0
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._server).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    total += child.memory_info().rss if child.pid != os.getpid() else 0
        return total


def main() -> None:
    """Serve status. Arguments: server's process id, log level, log format, and descriptors of status port and line."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    server, level, format_, port, line = sys.argv[-5:]
    for descriptor in (port, line):
        os.set_inheritable(int(descriptor), False)
    configure_logging(level, format_)
    samples = Samples(int(server))
    registry = registry_of(Families(FAMILIES, samples.view), pid=lambda: int(server))
    status = StatusServer(socket.socket(fileno=int(port)), samples.health, registry)
    threading.current_thread().name = "line"
    status.start()
    with os.fdopen(int(line), encoding="utf-8") as lines:
        samples.read(lines)
    logging.shutdown()
    os._exit(0)  # does not wait for pending answers
