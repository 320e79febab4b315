"""Check the machine: memory, open files, and memory shared by a worker and a parameter server."""

from __future__ import annotations

import os
import resource
import secrets
import socket
from collections.abc import Iterator

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.metrics.system import available_memory
from relaax.server.rlx_server.listening.admission import FORKED, MEGABYTE, SPAWNED
from relaax.transport import segments
from relaax.transport.frames import BrokenFrame, Frame, FrameSocket

_SERVER_BYTES = 600e6
"""Memory to reserve for a server itself. Its workers share it."""
_SECONDS = 5.0
_SIZE = 1024


def memory(subject: Subject) -> Iterator[Finding]:
    """Check how many workers fit into memory besides a server, by the RLX server's estimate for a worker."""
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


def descriptors(subject: Subject) -> Iterator[Finding]:
    """Check the limit of open files: each connection of an RLX server needs several."""
    limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    workers = subject.configuration.rlx_server.max_workers
    needed = 3 * workers + 64
    if limit < needed:
        way_out = f"ulimit -n {needed} (the hard limit is {hard_limit}), or a lower relaax-rlx-server.max_workers"
        yield warning(f"{limit} open files are too few for {workers} workers, which take {needed}", way_out)
    else:
        yield ok(f"{limit} open files are enough for {workers} workers")


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Pass memory through a Unix socket as a test, unless workers always use gRPC."""
    bridge = subject.configuration.rlx_server.bridge
    if bridge == "grpc":
        return
    why = _sharing_error()
    if why is None:
        yield ok(f"a worker and a parameter server on this machine can share memory (bridge: {bridge})")
    elif bridge == "auto":
        sentence = f"processes cannot share memory on this machine, so workers use gRPC: {why}"
        yield warning(sentence, "if that is intended, set relaax-rlx-server.bridge to grpc")
    else:
        sentence = f"bridge is {bridge}, and processes cannot share memory on this machine: {why}"
        yield wrong(sentence, "use another machine, or set relaax-rlx-server.bridge to auto or grpc")


def _sharing_error() -> str | None:
    """Return why memory cannot be shared; None if it can."""
    if not segments.SUPPORTED:
        return "this system cannot pass memory between processes; Linux is required"
    try:
        _share_memory()
    except OSError as error:
        return error.strerror or str(error)
    except (BrokenFrame, ValueError) as error:
        return str(error)
    return None


def _share_memory() -> None:
    """Pass memory from a shard to a worker, both in this thread. Raises OSError, BrokenFrame and ValueError."""
    name = b"\0relaax-doctor-" + secrets.token_hex(16).encode()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker,
    ):
        for one in (listener, worker):
            one.settimeout(_SECONDS)
        listener.bind(name)
        listener.listen(1)
        worker.connect(name)
        shard, _ = listener.accept()
        with shard:
            handed, _ = segments.make(_SIZE)
            try:
                FrameSocket(shard).send(Frame(0, b""), handed)
            finally:
                os.close(handed)
            _, descriptor = FrameSocket(worker, descriptors=True).receive()
        if descriptor is None:
            raise BrokenFrame("the system passes no descriptors")
        try:
            segments.map_(descriptor, _SIZE, writable=True)
        finally:
            os.close(descriptor)
