"""The process that answers at an RLX server's status port (see `status`): it has threads, the server has none."""

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
from relaax.server.logs import configure_logging
from relaax.server.metric_families import Families, Family, registry_of
from relaax.server.status import StatusServer

SILENT_SECONDS = 10.0
"""A server that says nothing for so long is stuck, or stopped: it does not serve."""

Sample = Mapping[str, Any]


def _labelled(name: str) -> Any:
    return lambda sample: {(label,): number for label, number in sample[name].items()}


def _plain(name: str) -> Any:
    return lambda sample: sample[name]


def _of_clients(name: str, help_: str) -> Family[Sample]:
    """A figure of each client."""
    key = name.removesuffix("_total")

    def read(sample: Sample) -> Any:
        return {(client,): figures[key] for client, figures in sample["clients"].items()}

    return Family(f"client_{name}", f"{help_}, by client", read, ("client",))


def _family(name: str, help_: str, label: str | None = None) -> Family[Sample]:
    key = name.removesuffix("_total")
    return Family(name, help_, _labelled(key) if label else _plain(key), (label,) if label else ())


_FAMILIES = (
    _family("serving", "1 where connections are taken, else 0"),
    _family("uptime_seconds", "seconds since the start of the process"),
    _family("workers", "processes that serve a client, or may yet"),
    _family("handshaking", "workers that do not know yet whether they let their client in"),
    _family("waiting", "connections that have no worker yet, by what they wait for", "for"),
    _family("connections_total", "connections accepted"),
    _family("forks_total", "worker processes started"),
    _family("admissions_total", "clients let in"),
    _family("refusals_total", "connections that were not let in, by reason", "reason"),
    _family("worker_failures_total", "workers that failed or were killed"),
    _family("training_finished", "1 where training has ended, else 0"),
    _of_clients("connections", "connections that are let in"),
    _of_clients("environments", "environments of these"),
    _of_clients("stuck", "connections that have waited for their client for ten seconds, in a message or an answer"),
    _of_clients("steps_total", "environment steps"),
    _of_clients("bytes_total", "bytes received and sent"),
    _of_clients("throttled_seconds_total", "seconds that connections were made to wait by quotas"),
    _of_clients("refusals_total", "connections refused by quotas, or because the token was revoked"),
    _family("workers_memory_bytes", "memory of all workers together, in resident sets: what they share counts in each"),
    _family("available_memory_bytes", "memory that processes of this machine could still take"),
)
FAMILIES = tuple(replace(family, name=f"relaax_rlx_server_{family.name}") for family in _FAMILIES)


class Samples:
    """The newest figures of the server, from the reading end of its line."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._latest: Sample | None = None
        self._heard = time.monotonic()

    def read(self, line: IO[str]) -> None:
        """Take them in until the line ends."""
        for said in line:
            self._latest, self._heard = json.loads(said), time.monotonic()

    def view(self) -> Sample | None:
        """The newest, and what is measured when it is asked for."""
        if self._latest is None:
            return None
        return {
            **self._latest,
            "serving": self.serving,
            "workers_memory_bytes": self._workers_memory(),
            "available_memory_bytes": psutil.virtual_memory().available,
        }

    @property
    def serving(self) -> bool:
        """Whether the server says so, and said it lately."""
        silent = time.monotonic() - self._heard > SILENT_SECONDS
        return self._latest is not None and bool(self._latest["serving"]) and not silent

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """For /healthz."""
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
    """Arguments: the server's process id, log level and format, and two descriptors: status port, line."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they may come to the whole group: the server decides
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
    os._exit(0)  # an answer that is under way is not waited for
