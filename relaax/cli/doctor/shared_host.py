"""Check whether a worker and a parameter server on this host can share memory, by doing so."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.transport import segments
from relaax.transport.frames import BrokenFrame, Frame, FrameSocket

SECONDS = 5.0
_SIZE = 1024


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Check that memory can be passed through a Unix socket, unless workers always use gRPC."""
    bridge = subject.configuration.rlx_server.bridge
    if bridge == "grpc":
        return
    why = _obstacle()
    if why is None:
        yield ok(f"a worker and a parameter server on this machine can share memory (bridge: {bridge})")
    elif bridge == "auto":
        sentence = f"processes cannot share memory on this machine, so workers use gRPC: {why}"
        yield warning(sentence, "if that is intended, set relaax-rlx-server.bridge to grpc")
    else:
        sentence = f"bridge is {bridge}, and processes cannot share memory on this machine: {why}"
        yield wrong(sentence, "use another machine, or set relaax-rlx-server.bridge to auto or grpc")


def _obstacle() -> str | None:
    """Return why memory cannot be shared; None if it can."""
    if not segments.SUPPORTED:
        return "this system cannot pass memory between processes; Linux is required"
    try:
        _share()
    except OSError as error:
        return error.strerror or str(error)
    except (BrokenFrame, ValueError) as error:
        return str(error)
    return None


def _share() -> None:
    """Act as a shard and a worker in this thread. Raises OSError, BrokenFrame and ValueError."""
    name = b"\0relaax-doctor-" + secrets.token_hex(16).encode()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker,
    ):
        for one in (listener, worker):
            one.settimeout(SECONDS)
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
