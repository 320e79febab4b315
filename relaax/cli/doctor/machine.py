"""Check the machine's memory."""

from __future__ import annotations

from collections.abc import Iterator

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.metrics.system import available_memory

_SERVER_BYTES = 600e6
"""TensorFlow's memory in a server, needed once (docs/operating.md)."""


def memory(subject: Subject) -> Iterator[Finding]:
    """Check how many workers fit beside a server, by the RLX server's estimate for one."""
    from relaax.server.rlx_server.listening.admission import FORKED, MEGABYTE, SPAWNED

    found = subject.configuration
    settings, clients = found.rlx_server, found.run.clients
    need = (SPAWNED if settings.worker_start == "spawn" else FORKED).bytes
    available = available_memory()
    workers = int((available - _SERVER_BYTES - settings.memory_reserve * MEGABYTE) // need)
    sentence = f"{available / 1e9:.1f} GB of memory are available: room for about {max(0, workers)} workers"
    way_out = "use another machine, a lower relaax-rlx-server.memory_reserve, or more environments per connection"
    if workers < 1:
        yield wrong(sentence, way_out)
    elif workers < clients:
        yield warning(f"{sentence}, and {clients} clients are configured", way_out)
    else:
        yield ok(sentence)
