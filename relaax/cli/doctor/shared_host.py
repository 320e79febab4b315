"""One host: whether a worker and a parameter server here could share memory. Found out by doing what they do."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.parameters import segments
from relaax.parameters.frames import BrokenFrame, Frame, FrameSocket

SECONDS = 5.0
_SIZE = 1024


def shared_memory(patient: Subject) -> Iterator[Finding]:
    """Memory that is handed over through a Unix socket, unless workers go by gRPC in any case."""
    bridge = patient.configuration.rlx_server.bridge
    if bridge == "grpc":
        return
    why = _obstacle()
    if why is None:
        yield ok(f"a worker and a parameter server of this machine can share memory (bridge: {bridge})")
    elif bridge == "auto":
        sentence = f"processes cannot share memory on this machine, workers reach a parameter server by gRPC: {why}"
        yield warning(sentence, "where that is as it should be, set relaax-rlx-server.bridge to grpc")
    else:
        sentence = f"bridge is {bridge}, and processes cannot share memory on this machine: {why}"
        yield wrong(sentence, "another machine, or set relaax-rlx-server.bridge to auto or grpc")


def _obstacle() -> str | None:
    """Why memory cannot be shared; None where it can."""
    if not segments.SUPPORTED:
        return "this system has none that can be handed over, it takes Linux"
    try:
        _share()
    except OSError as error:
        return error.strerror or str(error)
    except (BrokenFrame, ValueError) as error:
        return str(error)
    return None


def _share() -> None:
    """A shard's and a worker's part, both in this thread. Raises OSError, BrokenFrame and ValueError."""
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
            raise BrokenFrame("the system hands over no descriptors")
        try:
            segments.map_(descriptor, _SIZE, writable=True)
        finally:
            os.close(descriptor)
