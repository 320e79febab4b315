"""The machine: memory for workers."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong

_SERVER_BYTES = 600e6
"""What TensorFlow takes in a server, once (docs/operating.md)."""


def memory(patient: Subject) -> Iterator[Finding]:
    """How many workers fit beside a server, by what the RLX server assumes of one."""
    from relaax.server.rlx_server.admission import FORKED, MEGABYTE, SPAWNED

    found = patient.configuration
    settings, clients = found.rlx_server, found.run.clients
    need = (SPAWNED if settings.worker_start == "spawn" else FORKED).bytes
    available = psutil.virtual_memory().available
    workers = int((available - _SERVER_BYTES - settings.memory_reserve * MEGABYTE) // need)
    sentence = f"{available / 1e9:.1f} GB of memory are available: room for about {max(0, workers)} workers"
    way_out = "another machine, a lower relaax-rlx-server.memory_reserve, or fewer connections of more environments"
    if workers < 1:
        yield wrong(sentence, way_out)
    elif workers < clients:
        yield warning(f"{sentence}, and {clients} clients are configured", way_out)
    else:
        yield ok(sentence)
