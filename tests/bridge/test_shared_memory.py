"""Vectors through memory: who is let in, what a vector's memory may be used for, and what happens when it ends."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.bridge import BridgeError, BridgeUnavailable, Moments, segments
from relaax.bridge import parameter_server_pb2 as pb
from relaax.bridge.frames import HELLO, PULL, PUSH, BrokenFrame, Frame, FrameSocket
from relaax.bridge.grpc_bridge import GrpcBridge
from relaax.bridge.shared_memory import NoSharedMemory, SharedMemory
from relaax.host.recycled import own_memory
from relaax.server.parameter_server.local_connection import LocalConnection
from relaax.server.parameter_server.shard import Shard
from support.parameter_servers import SIZE, Models, Running, bridge_to, gradient, registration, running
from support.processes import wait_until

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="the system has no memory that can be handed over")

WORKER = "0" * 32


@contextmanager
def sharing(server: Running, **options: Any) -> Iterator[GrpcBridge]:
    """A registered bridge that has pulled."""
    with bridge_to(server.address, **{"way": "shared_memory", **options}) as bridge:
        bridge.register(registration())
        bridge.pull()
        assert bridge.shares_memory
        yield bridge


def offer(server: Running, worker_id: str = WORKER, **changes: Any) -> pb.SharedMemoryOffer:
    """What a worker is told, and after it other values of some of it."""
    made = server.core.register(worker_id, registration().fingerprint, "", 1, False, 1)
    assert made
    offered = server.server._local._offers.offer(worker_id)
    assert offered is not None
    offered.MergeFrom(pb.SharedMemoryOffer(**changes))
    return offered


def connected(offered: pb.SharedMemoryOffer, worker_id: str = WORKER) -> FrameSocket:
    """A connection that was let in."""
    frames = FrameSocket(socket.socket(socket.AF_UNIX))
    frames.socket.settimeout(10.0)
    frames.socket.connect(b"\0" + offered.socket)
    frames.send(Frame(HELLO, worker_id.encode() + offered.worker_proof, 4 * SIZE))
    frame, descriptor = frames.receive()
    assert frame.message == offered.shard_proof
    assert descriptor is not None
    os.close(descriptor)
    return frames


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_was_pulled_stays_as_it_is_while_anybody_has_it() -> None:
    with running() as server, sharing(server) as bridge:
        held = [bridge.pull().parameters]
        for _ in range(10):
            pulled = bridge.push(gradient(1), 1).pulled
            assert pulled is not None
            held.append(pulled.parameters[:1].reshape(1, 1))  # a view of a view will do
        np.testing.assert_array_equal([vector.ravel()[0] for vector in held], -np.arange(11))


def test_it_stays_so_when_the_connection_is_lost() -> None:
    with running() as server, sharing(server) as bridge, sharing(server) as other:
        held = [bridge.pull(), *(bridge.push(gradient(1), 1).pulled for _ in range(4))]
        for connection in list(server.server._local._connections.values()):
            connection.close()
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen their end")
        for _ in range(10):
            other.push(gradient(1), 1)
        assert [pulled and pulled.parameters[0] for pulled in held] == [0, -1, -2, -3, -4]
        assert len(server.core.segments.alive) <= 6


def test_memory_that_nobody_has_any_more_is_used_again() -> None:
    with running() as server, sharing(server) as one, sharing(server) as other:
        for _ in range(20):
            for bridge in (one, other):
                bridge.push(gradient(1), 1)
        assert len(server.core.segments.alive) <= 6, "each worker has one or two of them, the shard one"
        held = [one.push(gradient(1), 1).pulled for _ in range(12)]
        assert len(server.core.segments.alive) > 12
        del held
        for _ in range(3):
            one.push(gradient(1), 1)
        assert len(server.core.segments.alive) <= 10
        memory = one._links[0]._memory
        assert memory is not None
        assert memory._segments.keys() <= server.core.segments.alive, "what is no more is not mapped either"


def test_parameters_cannot_be_written_to() -> None:
    with running() as server, sharing(server) as bridge:
        parameters = bridge.pull().parameters
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


def test_memory_that_is_handed_over_never_changes_its_length() -> None:
    descriptor, memory = segments.make(SIZE)
    try:
        for length in (0, 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, length)
        with pytest.raises(ValueError, match=f"memory of {4 * SIZE} bytes was handed over for {SIZE + 1} numbers"):
            segments.map_(descriptor, SIZE + 1, writable=True)
        segments.map_(descriptor, SIZE, writable=True)[0] = 3
        assert memory[0] == 3
    finally:
        os.close(descriptor)


def test_long_reports_and_statistics_go_along() -> None:
    length = 10_000
    with running(Models(statistics={"s": length})) as server, sharing(server) as bridge:
        for number in range(4096):
            bridge.episode(number / 3, number)
        bridge.statistic("s", Moments.of(np.ones((2, length))))
        pushed = bridge.push(gradient(1), 1)
        assert bridge.shares_memory
        assert pushed.pulled is not None
        assert pushed.pulled.statistics["s"].count == 2
        assert server.core.status().episodes == 4096


def test_a_push_whose_answer_is_lost_is_applied_once_and_memory_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running() as server, sharing(server) as bridge:
        monkeypatch.setattr(LocalConnection, "_send", lambda self, carrier: self.close())
        for version in (1, 2):
            pushed = bridge.push(gradient(1), 5)
            assert (pushed.version, pushed.global_step, pushed.discarded) == (version, 5 * version, None)
        np.testing.assert_array_equal(server.parameters, -gradient(2))
        assert not bridge.shares_memory
        lost = [record.message for record in caplog.records if "no longer shared" in record.message]
        assert [text.partition(": ")[2] for text in lost] == [
            "by gRPC for now, memory is no longer shared: the connection was closed"
        ]


def test_memory_that_was_given_up_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("relaax.bridge.link.time.monotonic", lambda: now)
    with running() as server, sharing(server) as bridge:
        for connection in list(server.server._local._connections.values()):
            connection.close()
        bridge.push(gradient(1), 1)
        now += 29.0
        bridge.pull()
        assert not bridge.shares_memory
        now += 1.0
        assert bridge.push(gradient(1), 1).version == 2
        assert bridge.shares_memory


def test_a_push_that_takes_too_long_is_asked_again_by_grpc_and_applied_once() -> None:
    with running() as server, sharing(server, timeout=0.3) as bridge:
        assert server.core.gate.hold(0.5)
        assert bridge.push(gradient(1), 5).version == 1
        assert not bridge.shares_memory
        assert server.core.status().counters.env_steps == 5


def test_what_the_server_refuses_is_told_in_its_words_and_memory_stays() -> None:
    with running() as server, bridge_to(server.address, way="shared_memory", unavailable_after=0.2) as bridge:
        bridge.register(registration(exploit=True))
        with pytest.raises(BridgeError, match="an exploit worker cannot push"):
            bridge.push(None, 1)
        assert bridge.pull().version == 0
        server.core.gate.close("shards are away")
        with pytest.raises(BridgeUnavailable, match=r"was away for 0\.2 s: shards are away"):
            bridge.pull()
        server.core.gate.open()
        assert bridge.pull().version == 0
        assert bridge.shares_memory


def test_a_failure_of_the_server_itself_is_told_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as server, sharing(server) as bridge:
        monkeypatch.setattr(server.core, "push", lambda push: 1 / 0)
        with pytest.raises(BridgeError, match="ZeroDivisionError: division by zero"):
            bridge.push(gradient(1), 1)
        assert "a question of a local worker failed" in caplog.text


@pytest.mark.parametrize("where", ["at the start", "later"])
def test_without_memory_there_is_grpc(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def none(size: int, **_: Any) -> Any:
        raise OSError(errno.EMFILE, "no more descriptors")

    with running() as server, bridge_to(server.address, way="auto") as bridge:
        if where == "at the start":
            monkeypatch.setattr(segments, "make", none)
        bridge.register(registration())
        assert bridge.shares_memory == (where == "later")
        monkeypatch.setattr(segments, "make", none)
        bridge.pull()
        assert bridge.push(gradient(1), 1).version == 1
        assert not bridge.shares_memory


def test_what_lies_in_no_shared_memory_is_copied_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As parameters on a GPU are."""
    monkeypatch.setattr(
        "relaax.server.parameter_server.making.Shard",
        lambda *given, **keys: Shard(*given, **{**keys, "empty": own_memory}),
    )
    with running() as server, sharing(server) as bridge:
        held = [bridge.push(gradient(1), 1).pulled for _ in range(6)]
        assert [pulled and pulled.parameters[0] for pulled in held] == [-1, -2, -3, -4, -5, -6]
        assert bridge.shares_memory


def test_where_no_memory_is_offered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running() as server:
        server.server._local._offers.open = False
        with bridge_to(server.address, way="auto") as bridge:
            bridge.register(registration())
            assert bridge.pull().version == 0
            assert not bridge.shares_memory
        assert f"parameter server {server.address}: by gRPC, memory is not shared: it offers none" in caplog.text
        told = r"bridge is shared_memory: it offers none; run both on one host and in one network namespace"
        with bridge_to(server.address, way="shared_memory") as bridge, pytest.raises(BridgeError, match=told):
            bridge.register(registration())


def test_the_offer_of_another_host_leads_nowhere() -> None:
    with running() as server, pytest.raises(NoSharedMemory, match="its socket is not under this kernel"):
        SharedMemory(offer(server, socket=b"relaax-of-another-host"), WORKER, SIZE)


@pytest.mark.parametrize("mistake", ["proof", "another's proof", "not registered", "length", "no introduction"])
def test_a_stranger_is_not_heard(mistake: str) -> None:
    other = "1" * 32
    with running() as server:
        offered = offer(server)
        if mistake == "not registered":
            server.core.leave(WORKER)
        proof = offer(server, other).worker_proof if mistake == "another's proof" else offered.worker_proof
        hello = WORKER.encode() + (bytes(32) if mistake == "proof" else proof)
        length = 4 * SIZE + 4 * (mistake == "length")
        with closing(FrameSocket(socket.socket(socket.AF_UNIX))) as frames:
            frames.socket.settimeout(10.0)
            frames.socket.connect(b"\0" + offered.socket)
            frames.send(Frame(PUSH if mistake == "no introduction" else HELLO, hello, length))
            with pytest.raises((BrokenFrame, ConnectionResetError)):
                frames.receive()
        assert server.server._local._offers.connected() == 0


def test_who_answers_must_prove_to_be_the_shard() -> None:
    with running() as server, pytest.raises(NoSharedMemory, match="did not prove to be the shard"):
        SharedMemory(offer(server, shard_proof=bytes(32)), WORKER, SIZE)


def test_those_who_say_nothing_take_a_bounded_number_of_places() -> None:
    with running() as server:
        name = b"\0" + server.server._local._offers.socket
        silent = []
        try:
            for _ in range(40):
                silent.append(socket.socket(socket.AF_UNIX))
                silent[-1].connect(name)
            silent[-1].settimeout(10.0)
            assert silent[-1].recv(1) == b"", "it was closed"
            with bridge_to(server.address, way="auto") as bridge:
                bridge.register(registration())
                assert bridge.pull().version == 0
                assert not bridge.shares_memory
        finally:
            for sock in silent:
                sock.close()

        def shares() -> bool:
            with bridge_to(server.address, way="auto") as bridge:
                bridge.register(registration())
                return bridge.shares_memory

        wait_until(shares, "the places are free again")


def test_a_worker_that_dies_in_the_middle_of_a_write_changes_nothing() -> None:
    with running() as server:
        with closing(connected(offer(server))) as frames:
            frames.socket.sendall(b"\x40\0\0\0\x02\0")  # a push whose rest never comes
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen its end")
        assert (server.version, server.core.status().counters.env_steps) == (0, 0)
        with sharing(server) as bridge:
            assert bridge.push(gradient(1), 1).version == 1


def test_nonsense_ends_its_own_connection_only() -> None:
    random = np.random.default_rng(0)
    header = b"\0\0\0\0", b"\x02\0", b"\0\0", b"\0\0\0\0"
    with running() as server, sharing(server) as bridge:
        worker_ids = [f"{number:032x}" for number in range(100, 112)]
        for number, worker_id in enumerate(worker_ids):
            with closing(connected(offer(server, worker_id), worker_id)) as frames:
                frames.socket.sendall(random.bytes(1 + 7 * number))
        for wrong in (
            Frame(9, b""),
            Frame(PUSH, b"", vector=4 * SIZE + 4),
            Frame(PUSH, bytes(2**20 + 1)),
        ):
            with closing(connected(offer(server))) as frames, pytest.raises((BrokenFrame, OSError)):
                frames.send(wrong)
                frames.receive()
        with closing(connected(offer(server))) as frames:
            frames.send(Frame(PUSH, b"\xff\xff\xff"))
            assert frames.receive()[0].kind == 3, "INVALID_ARGUMENT, and the next question is heard"
            frames.socket.sendall(b"".join(header) + bytes(8))
            assert frames.receive()[0].kind == 0
            frames.send(Frame(PULL, pb.PullRequest(vector="target").SerializeToString(), numbers=[7, 8, 9]))
            assert frames.receive()[0].message == b"there is no vector named 'target'"
        assert bridge.push(gradient(1), 1).version == 1
        assert bridge.shares_memory


def test_nothing_is_left_behind() -> None:
    with running() as server:
        with sharing(server) as bridge:  # what is opened once
            bridge.push(gradient(1), 1)
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen its end")
        before = descriptors()
        for _ in range(3):
            with sharing(server) as bridge:
                bridge.push(gradient(1), 1)
                bridge.register(registration())
                bridge.pull()
                bridge.push(gradient(1), 1)
                assert server.server._local._offers.connected() == 1
            del bridge
        wait_until(lambda: descriptors() <= before, "all descriptors are closed")
    assert not server.server._local._threads


def test_a_server_that_ends_answers_what_it_was_asked() -> None:
    with running() as server, sharing(server) as bridge:
        assert server.core.gate.hold(30.0)
        pushed = []
        thread = threading.Thread(target=lambda: pushed.append(bridge.push(gradient(1), 5)))
        thread.start()
        wait_until(lambda: server.core.gate._changed._waiters, "the push waits")
        threading.Timer(0.05, server.core.gate.release).start()
        server.server._local.stop(10.0)
        thread.join(30)
        assert pushed[0].version == 1
