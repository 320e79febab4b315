"""Vectors in shared memory: admission, reuse of segments, and the end of connections."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.nn.recycled_memory import own_memory
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import (
    EXPLOIT,
    TRAIN,
    ParameterServerError,
    ParameterServerUnavailable,
    ParameterServerUnusable,
)
from relaax.parameters.moments import Moments
from relaax.parameters.shard_client import SharedMemory
from relaax.server.parameter_server.service.transports import MAX_HELD_VECTORS, ParameterSession
from relaax.server.parameter_server.shard.shard import Shard
from relaax.server.ports import local_server
from relaax.transport import segments
from relaax.transport.frames import HELLO, PULL, PUSH, BrokenFrame, Frame, FrameSocket
from relaax.transport.local_socket import NoSharedMemory
from relaax.transport.shard_link import MemoryTransport
from support.parameter_servers import SIZE, Models, Running, gradient, parameter_client, registration, running
from support.processes import wait_until

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="the system has no memory that can be handed over")

WORKER = "0" * 32


@contextmanager
def sharing(server: Running, **options: Any) -> Iterator[ParameterClient]:
    """A registered client that has pulled."""
    with parameter_client(server.address, **{"transport": "shared_memory", **options}) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        assert parameters_client.shares_memory
        yield parameters_client


def offer(server: Running, worker_id: str = WORKER, **changes: Any) -> pb.SharedMemoryOffer:
    """Return the offer of a registered worker, with some fields replaced by `changes`."""
    made = server.core.register(worker_id, registration().fingerprint, "", 1, TRAIN, 1)
    assert made
    made_of = server.server._local._offers.offer(worker_id)
    assert made_of is not None
    offered = pb.SharedMemoryOffer(**made_of._asdict())
    offered.MergeFrom(pb.SharedMemoryOffer(**changes))
    return offered


def connected(offered: pb.SharedMemoryOffer, worker_id: str = WORKER) -> FrameSocket:
    """Return an accepted connection."""
    frames = FrameSocket(socket.socket(socket.AF_UNIX), descriptors=True)
    frames.socket.settimeout(10.0)
    frames.socket.connect(b"\0" + offered.socket)
    frames.send(Frame(HELLO, worker_id.encode() + offered.worker_proof, 4 * SIZE))
    frame, descriptor = frames.receive()
    assert frame.message == offered.shard_proof
    assert descriptor is not None
    os.close(descriptor)
    return frames


def no_memory(size: int, **_: Any) -> Any:
    raise OSError(errno.EMFILE, "out of descriptors")


class Without:
    """The module `socket` on a system without free descriptors."""

    def __getattr__(self, name: str) -> Any:
        return self.socket if name == "socket" else getattr(socket, name)

    def socket(self, *_: Any) -> Any:
        raise OSError(errno.EMFILE, "out of descriptors")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def copies(sock: socket.socket) -> int:
    """Return the number of descriptors of this process that refer to the socket."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += descriptor.stat().st_ino == os.fstat(sock.fileno()).st_ino
    return found


def test_pulled_vectors_do_not_change_while_in_use() -> None:
    with running() as server, sharing(server) as parameters_client:
        held = [parameters_client.pull().parameters]
        for _ in range(10):
            pulled = parameters_client.push(gradient(1), 1).pulled
            assert pulled is not None
            held.append(pulled.parameters[:1].reshape(1, 1))  # a view of a view also keeps the memory in use
        np.testing.assert_array_equal([vector.ravel()[0] for vector in held], -np.arange(11))


def test_pulled_vectors_survive_a_lost_connection() -> None:
    with running() as server, sharing(server) as parameters_client, sharing(server) as other:
        held = [parameters_client.pull(), *(parameters_client.push(gradient(1), 1).pulled for _ in range(4))]
        for connection in list(server.server._local._sessions.values()):
            connection.close()
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen their end")
        for _ in range(10):
            other.push(gradient(1), 1)
        assert [pulled and pulled.parameters[0] for pulled in held] == [0, -1, -2, -3, -4]
        assert len(server.core.segments.alive) <= 6


def test_unused_segments_are_reused() -> None:
    with running() as server, sharing(server) as one, sharing(server) as other:
        for _ in range(20):
            for parameters_client in (one, other):
                parameters_client.push(gradient(1), 1)
        assert len(server.core.segments.alive) <= 6, "each worker uses one or two segments, the shard one"
        held = [one.push(gradient(1), 1).pulled for _ in range(12)]
        assert len(server.core.segments.alive) > 12
        del held
        for _ in range(3):
            one.push(gradient(1), 1)
        assert len(server.core.segments.alive) <= 10
        memory = one._links[0].memory
        assert memory is not None
        assert memory._segments.keys() <= server.core.segments.alive, "segments that no longer exist are not mapped"


def test_a_worker_can_hold_a_bounded_number_of_vectors() -> None:
    with running() as server, sharing(server, transport="auto") as parameters_client:
        held = [parameters_client.push(gradient(1), 1).pulled for _ in range(3 * MAX_HELD_VECTORS)]
        assert [pulled and pulled.parameters[0] for pulled in held] == list(range(-1, -1 - 3 * MAX_HELD_VECTORS, -1))
        assert len(server.core.segments.alive) <= MAX_HELD_VECTORS + 6


def test_workers_use_grpc_when_shared_memory_is_exhausted() -> None:
    with running() as server, sharing(server, transport="auto") as parameters_client:
        taken = server.core.shared.taken()
        server.core.shared.limit = taken + 4 * 4 * SIZE
        held = [parameters_client.push(gradient(1), 1).pulled for _ in range(12)]
        assert [pulled and pulled.parameters[0] for pulled in held] == list(range(-1, -13, -1))
        assert server.core.shared.taken() <= server.core.shared.limit


def test_a_gradient_can_be_computed_in_shared_memory() -> None:
    with running() as server, sharing(server) as parameters_client:
        memory = parameters_client.gradient_memory()
        assert memory is not None
        for sign in (1, 2):
            memory[:] = gradient(sign)
            parameters_client.push(memory, 1)
        pulled = parameters_client.push(gradient(4), 1).pulled
        assert pulled is not None
        np.testing.assert_array_equal(pulled.parameters, -7 * gradient(1))
        np.testing.assert_array_equal(memory, gradient(4), "a gradient from elsewhere is copied there")
    with running() as server, parameter_client(server.address, transport="grpc") as parameters_client:
        parameters_client.register(registration())
        assert parameters_client.gradient_memory() is None


def test_parameters_are_read_only() -> None:
    with running() as server, sharing(server) as parameters_client:
        parameters = parameters_client.pull().parameters
        with pytest.raises(ValueError, match="read-only"):
            parameters[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            parameters.flags.writeable = True
        segment = server.core.segments.find(server.parameters)
        assert segment is not None
        with pytest.raises(PermissionError):
            segments.map_(segment.descriptor, SIZE, writable=True)
        with pytest.raises(PermissionError):
            os.ftruncate(segment.descriptor, 0)


def test_shared_memory_cannot_change_its_length() -> None:
    descriptor, memory = segments.make(SIZE)
    try:
        for length in (0, 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, length)
        with pytest.raises(ValueError, match=f"received memory of {4 * SIZE} bytes for {SIZE + 1} float32 numbers"):
            segments.map_(descriptor, SIZE + 1, writable=True)
        segments.map_(descriptor, SIZE, writable=True)[0] = 3
        assert memory[0] == 3
    finally:
        os.close(descriptor)


def test_long_reports_and_statistics_are_sent() -> None:
    length = 10_000
    with running(Models(statistics={"s": length})) as server, sharing(server) as parameters_client:
        for number in range(4096):
            parameters_client.metrics.episode(number / 3, number)
        parameters_client.metrics.statistic("s", Moments.of(np.ones((2, length))))
        pushed = parameters_client.push(gradient(1), 1)
        assert parameters_client.shares_memory
        assert pushed.pulled is not None
        assert pushed.pulled.statistics["s"].count == 2
        assert server.core.status().episodes == 4096


def test_a_lost_answer_is_applied_once_and_memory_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running() as server, sharing(server) as parameters_client:
        monkeypatch.setattr(ParameterSession, "_send", lambda self, carrier: self.close())
        for version in (1, 2):
            pushed = parameters_client.push(gradient(1), 5)
            assert (pushed.version, pushed.global_step, pushed.discarded) == (version, 5 * version, None)
        np.testing.assert_array_equal(server.parameters, -gradient(2))
        assert not parameters_client.shares_memory
        lost = [record.message for record in caplog.records if "no longer shared" in record.message]
        assert [text.partition(": ")[2] for text in lost] == [
            "vectors are sent by gRPC for now, memory is no longer shared: the other side closed the connection"
        ]


def test_lost_shared_memory_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("relaax.transport.shard_link.time.monotonic", lambda: now)
    with running() as server, sharing(server) as parameters_client:
        for connection in list(server.server._local._sessions.values()):
            connection.close()
        parameters_client.push(gradient(1), 1)
        now += 29.0
        parameters_client.pull()
        assert not parameters_client.shares_memory
        now += 1.0
        assert parameters_client.push(gradient(1), 1).version == 2
        assert parameters_client.shares_memory


def test_a_slow_push_is_repeated_by_grpc_and_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = MemoryTransport.mark_lost

    def notify_and_continue(self: MemoryTransport[SharedMemory], connection: SharedMemory, why: NoSharedMemory) -> None:
        lost(self, connection, why)
        server.core.access.release()

    monkeypatch.setattr(MemoryTransport, "mark_lost", notify_and_continue)
    with running() as server, sharing(server) as parameters_client:
        assert server.core.access.hold(60.0)
        monkeypatch.setattr(parameters_client._call, "_timeout", 0.1)
        assert parameters_client.push(gradient(1), 5).version == 1
        assert not parameters_client.shares_memory
        assert server.core.status().global_step == 5


def test_a_refusal_has_the_servers_text_and_keeps_memory() -> None:
    with (
        running() as server,
        parameter_client(server.address, transport="shared_memory", unavailable_after=0.2) as parameters_client,
    ):
        parameters_client.register(registration(purpose=EXPLOIT))
        with pytest.raises(ParameterServerError, match="an exploit worker cannot push"):
            parameters_client.push(None, 1)
        assert parameters_client.pull().version == 0
        server.core.access.close("shards are away")
        with pytest.raises(ParameterServerUnavailable, match=r"was unavailable for 0\.2 s: shards are away"):
            parameters_client.pull()
        server.core.access.open()
        assert parameters_client.pull().version == 0
        assert parameters_client.shares_memory


def test_an_internal_server_error_is_reported_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as server, sharing(server) as parameters_client:
        monkeypatch.setattr(server.core, "push", lambda push: 1 / 0)
        with pytest.raises(ParameterServerError, match="ZeroDivisionError: division by zero"):
            parameters_client.push(gradient(1), 1)
        assert "a request over shared memory failed" in caplog.text


@pytest.mark.parametrize("where", ["at the start", "later"])
def test_without_shared_memory_grpc_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    caplog.set_level(logging.INFO)
    with running() as server, parameter_client(server.address, transport="auto") as parameters_client:
        if where == "at the start":
            monkeypatch.setattr(segments, "make", no_memory)
        parameters_client.register(registration())
        assert parameters_client.shares_memory == (where == "later")
        monkeypatch.setattr(segments, "make", no_memory)
        parameters_client.pull()
        assert parameters_client.push(gradient(1), 1).version == 1
        assert not parameters_client.shares_memory
        told = (
            "the server has no shared memory left: out of"
            if where == "at the start"
            else "no shared memory is left for a vector"
        )
        assert told in caplog.text


def test_without_sockets_grpc_is_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running() as server, parameter_client(server.address, transport="auto") as parameters_client:
        monkeypatch.setattr("relaax.transport.local_socket.socket", Without())
        parameters_client.register(registration())
        assert parameters_client.pull().version == 0
        assert "by gRPC, memory is not shared: no socket is available: out of descriptors" in caplog.text


@pytest.mark.parametrize("what", ["sockets", "threads"])
def test_a_server_without_descriptors_or_threads_offers_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    with monkeypatch.context() as scarce:
        if what == "sockets":
            scarce.setattr(local_server, "socket", Without())
        else:
            scarce.setattr(local_server.LocalServer, "_start", no_thread)
        with running() as server, parameter_client(server.address, transport="auto") as parameters_client:
            parameters_client.register(registration())
            assert parameters_client.push(None, 1).global_step == 1
            assert not parameters_client.shares_memory
    assert (
        "workers of this host use gRPC because a socket for shared memory cannot be opened: out of"
        in caplog.text.replace("[Errno 24] ", "")
    )


def no_thread(*_: Any) -> None:
    raise RuntimeError("out of threads")


def test_without_a_thread_grpc_is_used_and_checkpoint_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start = threading.Thread.start

    def few(self: threading.Thread) -> None:
        if self.name == "local":
            no_thread()
        start(self)

    with running(directory=tmp_path) as server:
        with monkeypatch.context() as scarce, parameter_client(server.address, transport="auto") as parameters_client:
            scarce.setattr(threading.Thread, "start", few)
            parameters_client.register(registration())
            parameters_client.pull()
            assert parameters_client.push(gradient(1), 1).version == 1
            assert not parameters_client.shares_memory
        assert not server.server._local._strangers, "its place is free again"
        with sharing(server) as parameters_client:
            assert parameters_client.push(gradient(1), 1).version == 2
    assert server.ended is not None and server.ended[1], "the last checkpoint is saved"


def test_gradients_outside_shared_memory_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient may be outside shared memory, as with parameters on a GPU."""
    monkeypatch.setattr(
        "relaax.server.parameter_server.shard.model.Shard",
        lambda *given, **keys: Shard(*given, **{**keys, "empty": own_memory}),
    )
    with running() as server, sharing(server) as parameters_client:
        held = [parameters_client.push(gradient(1), 1).pulled for _ in range(6)]
        assert [pulled and pulled.parameters[0] for pulled in held] == [-1, -2, -3, -4, -5, -6]
        assert parameters_client.shares_memory


def test_a_missing_offer_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running() as server:
        server.server._local._offers.open = False
        with parameter_client(server.address, transport="auto") as parameters_client:
            parameters_client.register(registration())
            assert parameters_client.pull().version == 0
            assert not parameters_client.shares_memory
        assert (
            f"parameter server {server.address}: vectors are sent by gRPC, memory is not shared: it offers none"
            in caplog.text
        )
        told = r"bridge is shared_memory: it offers none; run both on one host and in one network namespace"
        with (
            parameter_client(server.address, transport="shared_memory") as parameters_client,
            pytest.raises(ParameterServerError, match=told),
        ):
            parameters_client.register(registration())


def test_the_offer_of_another_host_is_refused() -> None:
    with running() as server, pytest.raises(NoSharedMemory, match="no process listens at its socket"):
        SharedMemory(offer(server, socket=b"relaax-of-another-host"), WORKER, SIZE)


def test_a_temporary_failure_is_retried_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    make, calls = segments.make, []

    def at_last(size: int, **options: Any) -> Any:
        calls.append(size)
        return no_memory(size) if len(calls) < 3 else make(size, **options)

    with running() as server, parameter_client(server.address, transport="grpc") as first:
        first.register(registration())  # creates the model, whose memory is shared too
        monkeypatch.setattr(segments, "make", at_last)
        with sharing(server) as parameters_client:
            assert parameters_client.push(gradient(1), 1).version == 1
        assert len(calls) >= 3
        monkeypatch.setattr(segments, "make", no_memory)
        says = r"is shared_memory: the server has no shared memory left: out of descriptors \(not ready within 0.2 s\)"
        with (
            parameter_client(server.address, transport="shared_memory", unavailable_after=0.2) as parameters_client,
            pytest.raises(ParameterServerUnavailable, match=says),
        ):
            parameters_client.register(registration())


def test_required_shared_memory_of_another_host_ends_worker() -> None:
    says = "bridge is shared_memory: no process listens at its socket.* run both on one host"
    with running() as server, parameter_client(server.address, transport="shared_memory") as parameters_client:
        server.server._local._offers.socket = b"relaax-of-another-host"
        with pytest.raises(ParameterServerUnusable, match=says):
            parameters_client.register(registration())


def test_a_shard_that_ended_after_its_offer_may_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restarted shard makes another offer."""
    with running() as server, parameter_client(server.address, transport="shared_memory") as parameters_client:
        offers = server.server._local._offers
        right, made = offers.socket, []

        def offer_of_a_restarted_shard(worker_id: str) -> pb.SharedMemoryOffer | None:
            made.append(worker_id)
            offers.socket = right if len(made) > 1 else b"relaax-of-the-ended-shard"
            return type(offers).offer(offers, worker_id)

        monkeypatch.setattr(offers, "offer", offer_of_a_restarted_shard)
        parameters_client.register(registration())
        assert parameters_client.shares_memory


@pytest.mark.parametrize("mistake", ["proof", "another's proof", "not registered", "length", "no introduction"])
def test_a_connection_without_proof_is_refused(mistake: str) -> None:
    other = "1" * 32
    with running() as server:
        offered = offer(server)
        if mistake == "not registered":
            server.core.deregister(WORKER)
        proof = offer(server, other).worker_proof if mistake == "another's proof" else offered.worker_proof
        hello = WORKER.encode() + (bytes(32) if mistake == "proof" else proof)
        length = 4 * SIZE + 4 * (mistake == "length")
        with closing(FrameSocket(socket.socket(socket.AF_UNIX))) as frames:
            frames.socket.settimeout(10.0)
            frames.socket.connect(b"\0" + offered.socket)
            frames.send(Frame(PUSH if mistake == "no introduction" else HELLO, hello, length))
            if mistake == "not registered":  # it registered to get its proof, and was deregistered
                assert frames.receive()[0].message == b"the worker is not registered any more"
            with pytest.raises((BrokenFrame, ConnectionResetError)):
                frames.receive()
        assert server.server._local._offers.connected() == 0


def test_a_server_without_proof_is_refused() -> None:
    with running() as server, pytest.raises(NoSharedMemory, match="did not prove that it is the server"):
        SharedMemory(offer(server, shard_proof=bytes(32)), WORKER, SIZE)


def test_silent_connections_take_a_bounded_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_HANDSHAKE_SECONDS", 60.0)
    with running() as server:
        name = b"\0" + server.server._local._offers.socket
        silent = []
        try:
            for _ in range(40):
                silent.append(socket.socket(socket.AF_UNIX))
                silent[-1].connect(name)
            silent[-1].settimeout(10.0)
            assert silent[-1].recv(1) == b"", "it was closed"
            with parameter_client(server.address, transport="auto") as parameters_client:
                parameters_client.register(registration())
                assert parameters_client.pull().version == 0
                assert not parameters_client.shares_memory
        finally:
            for sock in silent:
                sock.close()

        def shares() -> bool:
            with parameter_client(server.address, transport="auto") as parameters_client:
                parameters_client.register(registration())
                return parameters_client.shares_memory

        wait_until(shares, "the places are free again")


def test_silent_connections_time_out_and_do_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server:
        name = b"\0" + server.server._local._offers.socket
        monkeypatch.setattr(local_server, "_HANDSHAKE_SECONDS", 0.1)
        with closing(socket.socket(socket.AF_UNIX)) as silent:
            silent.settimeout(10.0)
            silent.connect(name)
            assert silent.recv(1) == b"", "it was closed"
        monkeypatch.setattr(local_server, "_HANDSHAKE_SECONDS", 60.0)
        with closing(socket.socket(socket.AF_UNIX)) as silent:
            silent.connect(name)
            wait_until(lambda: server.server._local._strangers, "the server waits for it")
            server.server._local.stop(50.0)
            assert not server.server._local._threads, "no thread waits for it"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, FrameSocket]]:
    """A socket, and the receiver of its frames. Each frame carries at most one descriptor."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, closing(FrameSocket(other, descriptors=True)) as frames:
        other.settimeout(10.0)
        yield one, frames


def test_a_slowly_received_frame_has_one_deadline(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, FrameSocket]
) -> None:
    one, frames = pair
    now = 0.0

    def drip() -> float:
        nonlocal now
        one.send(b"\0")
        now += 1.0
        return now

    monkeypatch.setattr("relaax.transport.frames.time.monotonic", drip)
    with pytest.raises(TimeoutError, match="the frame was not received in time"):
        frames.receive(deadline=5.0)
    assert now == 5.0


@pytest.mark.parametrize("frame", [Frame(HELLO, bytes(65)), Frame(HELLO, b"", numbers=range(17))])
def test_a_frame_beyond_the_limit_is_refused(pair: tuple[socket.socket, FrameSocket], frame: Frame) -> None:
    one, frames = pair
    FrameSocket(one).send(frame)
    with pytest.raises(BrokenFrame, match="the limit is 64 bytes each"):
        frames.receive(64)


def test_frames_sent_together_are_received_one_by_one(pair: tuple[socket.socket, FrameSocket]) -> None:
    one, frames = pair
    sent = [Frame(HELLO, bytes([i]) * 40 * i, vector=i, segment=i, numbers=tuple(range(i))) for i in range(4)]
    for frame in sent:
        FrameSocket(one).send(frame)
    assert [frames.receive()[0] for _ in sent] == sent


def test_a_descriptor_with_several_frames_is_refused(pair: tuple[socket.socket, FrameSocket]) -> None:
    one, frames = pair
    FrameSocket(one).send(Frame(0, b""))
    FrameSocket(one).send(Frame(0, b""), one.fileno())
    with pytest.raises(BrokenFrame, match="a descriptor was received with more than one frame"):
        frames.receive()
    assert copies(one) == 1, "only its own descriptor"


@pytest.mark.parametrize("together", [True, False])
def test_a_second_descriptor_is_refused_and_all_are_closed(
    pair: tuple[socket.socket, FrameSocket], together: bool
) -> None:
    one, frames = pair
    for _ in range(1 if together else 2):
        socket.send_fds(one, [b"\0"], [one.fileno()] * (2 if together else 1))
    with pytest.raises(BrokenFrame, match="more than one descriptor was received with a frame"):
        frames.receive()
    assert copies(one) == 1, "only its own descriptor"


def test_a_lost_descriptor_is_reported(pair: tuple[socket.socket, FrameSocket]) -> None:
    one, frames = pair
    FrameSocket(one).send(Frame(0, b""), one.fileno())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (one.fileno(), limits[1]))  # the system uses the lowest free number
    filling = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                filling.append(os.dup(one.fileno()))
        with pytest.raises(BrokenFrame, match="a descriptor was lost: this process has reached its limit"):
            frames.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in filling:
            os.close(descriptor)


def test_workers_raise_their_limit_of_descriptors() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running() as server:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
            with sharing(server):
                assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(2**16, limits[1]), limits[1])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_shard_accepts_no_descriptors() -> None:
    one, two = socket.socketpair()
    with running() as server, one, two, closing(FrameSocket(socket.socket(socket.AF_UNIX), descriptors=True)) as frames:
        offered = offer(server)
        frames.socket.settimeout(10.0)
        frames.socket.connect(b"\0" + offered.socket)
        FrameSocket(one).send(Frame(HELLO, WORKER.encode() + offered.worker_proof, 4 * SIZE))
        for byte in two.recv(1000):
            socket.send_fds(frames.socket, [bytes([byte])], [one.fileno()])
        _, descriptor = frames.receive()
        assert descriptor is not None
        os.close(descriptor)
        assert copies(one) == 1, "only its own descriptor"


def test_a_worker_that_dies_during_a_write_changes_nothing() -> None:
    with running() as server:
        with closing(connected(offer(server))) as frames:
            frames.socket.sendall(b"\x40\0\0\0\x02\0")  # a push whose rest is not sent
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen its end")
        assert (server.version, server.core.status().global_step) == (0, 0)
        with sharing(server) as parameters_client:
            assert parameters_client.push(gradient(1), 1).version == 1


def test_invalid_frames_end_only_their_own_connection() -> None:
    random = np.random.default_rng(0)
    header = b"\0\0\0\0", b"\x02\0", b"\0\0", b"\0\0\0\0" * 2
    with running() as server, sharing(server) as parameters_client:
        worker_ids = [f"{number:032x}" for number in range(100, 112)]
        for number, worker_id in enumerate(worker_ids):
            with closing(connected(offer(server, worker_id), worker_id)) as frames:
                frames.socket.sendall(random.bytes(1 + 7 * number))
        for wrong in (
            Frame(9, b""),
            Frame(PUSH, b"", vector=4 * SIZE + 4),
            Frame(PUSH, bytes(2**20 + 1)),
        ):
            with closing(connected(offer(server))) as frames, pytest.raises((BrokenFrame, ConnectionError)):
                frames.send(wrong)
                frames.receive()
        with closing(connected(offer(server))) as frames:
            frames.send(Frame(PUSH, b"\xff\xff\xff"))
            assert frames.receive()[0].kind == 3, "INVALID_ARGUMENT, and the next request is answered"
            frames.socket.sendall(b"".join(header) + bytes(8))
            assert frames.receive()[0].kind == 0
            frames.send(Frame(PULL, pb.PullRequest(vector="target").SerializeToString(), numbers=[7, 8, 9]))
            assert frames.receive()[0].message == b"the model has no vector 'target'"
        assert parameters_client.push(gradient(1), 1).version == 1
        assert parameters_client.shares_memory


def test_closed_connections_leave_no_resources() -> None:
    with running() as server:
        with sharing(server) as parameters_client:  # opens the descriptors that stay open
            parameters_client.push(gradient(1), 1)
        del parameters_client
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen its end")
        wait_until(lambda: len(server.server._local._threads) == 1, "only the accepting thread is left")
        before = descriptors()
        for _ in range(3):
            with sharing(server) as parameters_client:
                parameters_client.push(gradient(1), 1)
                parameters_client.register(registration())
                parameters_client.pull()
                parameters_client.push(gradient(1), 1)
                wait_until(lambda: server.server._local._offers.connected() == 1, "the shard has seen the first's end")
            del parameters_client
        wait_until(lambda: descriptors() <= before, "all descriptors are closed")
    assert not server.server._local._threads


def test_an_ending_server_answers_pending_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_receiving = ParameterSession.stop_receiving

    def notify_and_continue(self: ParameterSession) -> None:
        stop_receiving(self)
        server.core.access.release()

    monkeypatch.setattr(ParameterSession, "stop_receiving", notify_and_continue)
    with running() as server, sharing(server) as parameters_client:
        assert server.core.access.hold(30.0)
        pushed = []
        thread = threading.Thread(target=lambda: pushed.append(parameters_client.push(gradient(1), 5)))
        thread.start()
        wait_until(lambda: server.core.access._changed._waiters, "the push waits")
        server.server._local.stop(10.0)
        thread.join(30)
        assert pushed[0].version == 1
