"""Inserts and samples through shared memory: results, authentication, and ended connections."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.client import ReplayClient
from relaax.replay.client.memory import MAX_UNREAD_UPDATES, ShardMemory
from relaax.replay.client.writer import RemoteWriter
from relaax.replay.interfaces import Insertion, Sampled
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from relaax.replay.wire import INSERT_NUMBERS, MAX_BATCHES, MAX_MESSAGE, MAX_PENDING_INSERTS, InsertLayout
from relaax.server.ports import local_server
from relaax.server.replay_server import replay_session
from relaax.server.replay_server.replay_session import ReplaySession
from relaax.transport import segments, shard_link
from relaax.transport.frames import HELLO, INSERT, SAMPLE, UPDATE, BrokenFrame, Frame, FrameSocket
from relaax.transport.local_socket import NoSharedMemory
from support.processes import Processes, wait_until
from support.replay_servers import (
    Shard,
    client_of,
    numbered,
    numbers,
    pictured,
    serving,
    start_replay_server,
    write_replay_configuration,
)
from support.resource_leaks import descriptors
from support.table_copies import restore, state_of

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="the system has no memory that can be handed over")


def varied() -> TableDeclaration:
    """A table with fields of all kinds and unaligned lengths."""
    fields = {
        "stack": Field("uint8", (5, 3, 4), frames=2),
        "going_on": Field("bool", (3,)),
        "action": Field("int16"),
        "state": Field("float32", (7,)),
        "value": Field("float64", (1, 3)),
    }
    return TableDeclaration(TableSpec("varied", fields, 50, "prioritized", frame=(5, 3, 2)))


def insertions() -> Iterator[Insertion]:
    """Yield 84 steps of one environment, 7 at a time; the capacity of the table is 50."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (85, 5, 3, 2), dtype=np.uint8)
    for first in range(0, 84, 7):
        steps = np.arange(first, first + 7)
        columns = {
            "value": rng.normal(size=(7, 1, 3)),
            "state": rng.normal(size=(7, 7)).astype(np.float32),
            "stack": np.stack([steps - 1, steps], axis=1),
            "going_on": rng.integers(0, 2, (7, 3)).astype(np.bool_),
            "action": rng.integers(-9, 9, 7, dtype=np.int16),
        }
        kept = max(0, first - 1)
        yield Insertion(columns, rng.random(7), frames[kept : first + 7], kept)


def table_of(shard: Shard, session: str = "") -> Any:
    return next(table for (_, owner), table in shard.service._tables.items() if owner == session)._table


def sessions_of(shard: Shard) -> list[ReplaySession]:
    return list(shard.server._local._sessions.values())  # type: ignore[arg-type]


def by_memory(shard: Shard) -> int:
    return shard.server._local._offers.connected()


def writer_of(client: ReplayClient) -> RemoteWriter:
    return client._writers[0]


def drawn(client: ReplayClient, count: int) -> Sampled:
    found = client.sample(count, 30.0)
    assert found is not None
    return found


def end_all(shard: Shard) -> None:
    """Close the shared-memory connections, on the server's side."""
    for session in sessions_of(shard):
        session.close()
    wait_until(lambda: by_memory(shard) == 0, "the server has seen their end")


def test_shared_memory_and_grpc_give_identical_results() -> None:
    with (
        serving() as (shard,),
        client_of([shard], varied(), session="memory") as memory,
        client_of([shard], varied(), session="grpc", share_memory=False) as grpc,
    ):
        for insertion in insertions():
            for client in (memory, grpc):
                client.writers[0].insert(insertion)
        writer_of(memory).flush()
        assert by_memory(shard) == 1
        ours, other = table_of(shard, "memory"), table_of(shard, "grpc")
        state, wanted = state_of(ours), state_of(other)
        for name in state.keys() - {"random", "writers/names"}:
            np.testing.assert_array_equal(state[name], wanted[name], err_msg=name)
        restore(other, {**wanted, "random": state["random"]})
        for count in (1, 33, 8, 500):
            one, two = drawn(memory, count), drawn(grpc, count)
            assert list(one.columns) == list(two.columns)
            pairs = [(one.columns[name], two.columns[name]) for name in one.columns]
            pairs += [(one.keys, two.keys), (one.probabilities, two.probabilities), (one.ages, two.ages)]
            for mine, theirs in pairs:
                assert (mine.dtype, mine.shape, mine.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        assert by_memory(shard) == 2


def test_sample_in_use_is_unchanged_and_its_memory_is_reused() -> None:
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(*range(100)))
        held = [drawn(client, 32) for _ in range(MAX_BATCHES + 4)]
        before = [found.columns["number"].copy() for found in held]
        sampler = next(session for session in sessions_of(shard) if session._batches)
        assert len(sampler._batches) == MAX_BATCHES, "further samples came by gRPC"
        with pytest.raises(ValueError, match="read-only"):
            held[0].columns["number"][0] = 7
        del held[5]
        for _ in range(20):
            drawn(client, 32)
        end_all(shard)
        for _ in range(20):
            drawn(client, 32)
        for found, copy in zip(held, before[:5] + before[6:], strict=True):
            np.testing.assert_array_equal(found.columns["number"], copy)
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(*range(100)))
        for count in (1, 30, 32, 3, 31, 700, 2):
            for _ in range(5):
                drawn(client, count)
        sampler = next(session for session in sessions_of(shard) if session._batches)
        assert len(sampler._batches) <= 2


def lose_answer(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: Callable[[ReplaySession, Frame], None], before: int = 0
) -> list[int]:
    """Lose one answer of a kind, after `before` answers. Return a list that is not empty after the loss."""
    real, lost = getattr(ReplaySession, name), []
    kept = iter(range(before))

    def once(self: ReplaySession, frame: Frame) -> None:
        if lost or next(kept, None) is not None:
            real(self, frame)
            return
        lost.append(1)
        answer(self, frame)
        raise BrokenFrame("the connection broke")

    monkeypatch.setattr(ReplaySession, name, once)
    return lost


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("before", range(5))
def test_insert_without_an_answer_is_stored_once_by_grpc(
    monkeypatch: pytest.MonkeyPatch, before: int, arrived: bool
) -> None:
    def take(session: ReplaySession, frame: Frame) -> None:
        if arrived:
            session._insert(frame)

    lost = lose_answer(monkeypatch, "_answer_insert", take, before)
    with serving() as (shard,), client_of([shard], pictured()) as client:
        frames = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
        for last in range(1, 6):
            columns = {"number": np.array([last]), "stack": np.array([[last - 1, last]])}
            client.writers[0].insert(Insertion(columns, None, frames[: last + 1]))
        writer_of(client).finish(30.0)
        table = table_of(shard)
        assert (lost, table.size, client.lost) == ([1], 5, 0)
        # Answers that the broken connection still carried can be lost with it.
        assert int(arrived) <= table.totals.duplicates <= before + int(arrived)
        for number, stack in zip(*drawn(client, 60).columns.values(), strict=True):
            np.testing.assert_array_equal(stack[..., 1], frames[number, ..., 0])


def test_refused_inserts_keep_order_and_are_forced_on_close() -> None:
    limited = numbered(samples_per_insert=1.0, error_buffer=4.0)
    with serving() as (shard,), client_of([shard], limited) as client, client_of([shard], limited) as learner:
        table, writer = table_of(shard), client.writers[0]
        done = threading.Event()

        def learn() -> None:
            while not done.is_set():
                learner.sample(1, 0.01)

        learning = threading.Thread(target=learn)
        learning.start()
        try:
            for value in range(100):
                writer.insert(numbers(value))
            writer_of(client)._deliver_pending()
        finally:
            done.set()
            learning.join()
        held = next(iter(shard.service._tables.values()))
        assert held.limiter.overruns == 0, "no insert was forced"
        learner.sample(1, 0.0)  # allows one more insert
        while held.limiter.await_insert(1, 0):
            held.limiter.undo_insert(1)
            writer.insert(numbers(100))
            writer_of(client)._deliver_pending()
        writer.insert(numbers(101))
        assert writer_of(client)._in_flight, "the insert is in flight and does not wait"
        client.close()
        assert client.overruns == held.limiter.overruns == client.lost + 1 == 1
        columns = state_of(table)["columns/number"]
        assert columns[:100].tolist() == list(range(100)) and columns[-1] == 101


def test_inserts_are_pipelined(monkeypatch: pytest.MonkeyPatch) -> None:
    may, real = threading.Semaphore(1), ReplaySession._insert

    def slowly(self: ReplaySession, frame: Frame) -> pb.InsertResponse:
        assert may.acquire(timeout=60)
        return real(self, frame)

    monkeypatch.setattr(ReplaySession, "_insert", slowly)
    with serving() as (shard,), client_of([shard], numbered()) as client:
        for value in range(1 + MAX_PENDING_INSERTS):
            client.writers[0].insert(numbers(value))
        assert table_of(shard).size == 1
        for _ in range(2 * MAX_PENDING_INSERTS):
            may.release()
        for value in range(MAX_PENDING_INSERTS):
            client.writers[0].insert(numbers(value))
        assert len(drawn(client, 4).keys) == 4
        assert table_of(shard).size == 1 + 2 * MAX_PENDING_INSERTS


def test_sample_without_an_answer_is_repeated_by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = lose_answer(monkeypatch, "_answer_sample", lambda session, frame: None)
    monkeypatch.setattr(shard_link, "RETRY_SECONDS", 0.0)
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(1))
        assert set(drawn(client, 8).columns["number"].tolist()) == {1}
        assert lost == [1]
        drawn(client, 8)
        assert by_memory(shard) == 2, "shared memory is tried again"


def test_late_answer_is_replaced_by_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = threading.Event()
    lose_answer(monkeypatch, "_answer_sample", lambda session, frame: enough.wait(60) and None)
    with serving() as (shard,), client_of([shard], numbered(), timeout=0.5) as client:
        client.writers[0].insert(numbers(1))
        try:
            assert len(drawn(client, 8).keys) == 8
        finally:
            enough.set()


def test_client_without_an_offer_of_memory_uses_grpc() -> None:
    with serving() as (shard,), client_of([shard], numbered(), share_memory=False) as client:
        client.writers[0].insert(numbers(1))
        drawn(client, 4)
        assert by_memory(shard) == 0
    with serving() as (shard,):
        shard.server._local._offers.open = False
        with client_of([shard], numbered()) as client:
            client.writers[0].insert(numbers(1))
            drawn(client, 4)
            assert by_memory(shard) == 0


def test_client_uses_grpc_beyond_connection_or_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_session, "MAX_CONNECTIONS", 1)
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(1))
        drawn(client, 4)
        assert by_memory(shard) == 1

    def no_memory(size: int, **_: Any) -> Any:
        raise OSError(24, "no more descriptors")

    monkeypatch.setattr(replay_session, "MAX_CONNECTIONS", 9)
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(1))
        drawn(client, 4)
        assert by_memory(shard) == 2
        monkeypatch.setattr(segments, "make", no_memory)
        kept = drawn(client, 4), drawn(client, 4), drawn(client, 4)
        assert [set(found.columns["number"].tolist()) for found in kept] == [{1}] * 3


def offer(shard: Shard, **changes: Any) -> pb.ReplayMemoryOffer:
    """Return an offer of shared memory, with some fields replaced by `changes`."""
    name = "0" * 32
    made = shard.server._local._offers.offer(name)
    assert made is not None
    offered = pb.ReplayMemoryOffer(
        socket=made.socket, name=name, caller_proof=made.worker_proof, server_proof=made.shard_proof
    )
    offered.MergeFrom(pb.ReplayMemoryOffer(**changes))
    return offered


@contextmanager
def caller(offered: pb.ReplayMemoryOffer, length: int = 4 * INSERT_NUMBERS) -> Iterator[FrameSocket]:
    """A caller that has sent its hello."""
    with closing(FrameSocket(socket.socket(socket.AF_UNIX), descriptors=True)) as frames:
        frames.socket.settimeout(10.0)
        frames.socket.connect(b"\0" + offered.socket)
        frames.send(Frame(HELLO, offered.name.encode() + offered.caller_proof, length))
        yield frames


@contextmanager
def admitted(shard: Shard) -> Iterator[FrameSocket]:
    with caller(offer(shard)) as frames:
        _, descriptor = frames.receive()
        assert descriptor is not None
        os.close(descriptor)
        yield frames


@pytest.mark.parametrize("wrong", [{"caller_proof": bytes(32)}, {"name": "1" * 32}, {"length": 4}])
def test_unauthenticated_caller_is_refused(wrong: dict[str, Any]) -> None:
    more = {"length": wrong.pop("length")} if "length" in wrong else {}
    with serving() as (shard,), caller(offer(shard, **wrong), **more) as frames:
        with pytest.raises(BrokenFrame, match="the other side closed the connection"):
            frames.receive()
        assert by_memory(shard) == 0


def test_server_must_prove_its_identity() -> None:
    with serving() as (shard,), pytest.raises(NoSharedMemory, match="did not prove that it is the server"):
        ShardMemory(offer(shard, server_proof=bytes(32)), numbered().spec)


def test_silent_caller_is_closed_after_the_handshake_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "_HANDSHAKE_SECONDS", 0.1)
    with serving() as (shard,), closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.settimeout(30.0)
        silent.connect(b"\0" + offer(shard).socket)
        assert silent.recv(1) == b""


def test_memory_of_samples_is_sealed() -> None:
    with serving() as (shard,), client_of([shard], numbered()) as client, admitted(shard) as frames:
        client.writers[0].insert(numbers(1))
        incarnation = client._group.links[0].incarnation or ""
        request = pb.SampleRequest(incarnation=incarnation, count=2)
        frames.send(Frame(SAMPLE, request.SerializeToString(), vector=4096))
        answer, descriptor = frames.receive()
        assert descriptor is not None
        try:
            assert answer.vector == 4 * 64
            for size in (0, 2**20):
                with pytest.raises(PermissionError):
                    os.ftruncate(descriptor, size)
            with pytest.raises(PermissionError):
                segments.map_(descriptor, 1024, writable=True)
        finally:
            os.close(descriptor)


def test_priorities_are_updated_by_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(1, 2))
        by_grpc: list[Any] = []
        stub, update = client._group.links[0].stub, client._group.links[0].stub.UpdatePriorities
        monkeypatch.setattr(stub, "UpdatePriorities", Counting(update, by_grpc))
        found = drawn(client, 64)
        for priority in range(5):
            client.update_priorities(found, np.where(found.columns["number"] == 1, 0.0, priority + 1.0))
        assert set(drawn(client, 64).columns["number"].tolist()) == {2}, "updates precede the sample"
        assert table_of(shard).total_priority == 5.0
        assert not by_grpc
        for _ in range(MAX_UNREAD_UPDATES // 1024):
            client.update_priorities(found, np.ones(64))
        assert by_grpc, "too many unread updates would fill the socket"
        wait_until(lambda: table_of(shard).total_priority == 2.0, "they are applied")


class Counting:
    """A method of a stub that records its requests."""

    def __init__(self, method: Any, requests: list[Any]) -> None:
        self._method, self._requests = method, requests

    def future(self, request: Any, **more: Any) -> Any:
        self._requests.append(request)
        return self._method.future(request, **more)


def test_malformed_frame_ends_only_its_connection() -> None:
    with serving() as (shard,), client_of([shard], numbered()) as client:
        client.writers[0].insert(numbers(1))
        incarnation = client._group.links[0].incarnation or ""
        sample = pb.SampleRequest(incarnation=incarnation, count=2).SerializeToString()
        infinite = pb.UpdatePrioritiesRequest(
            incarnation=incarnation, keys=bytes(8), priorities=np.full(1, np.inf).tobytes()
        )
        for frame in (
            Frame(9, b""),
            Frame(INSERT, b"", vector=MAX_MESSAGE + 1),
            Frame(INSERT, b"", segment=MAX_PENDING_INSERTS),
            Frame(SAMPLE, sample, vector=0),
            Frame(SAMPLE, sample, vector=2**40),
            Frame(SAMPLE, sample, segment=7),
            Frame(UPDATE, b"\xff"),
            Frame(UPDATE, pb.UpdatePrioritiesRequest(incarnation=incarnation, keys=bytes(8)).SerializeToString()),
            Frame(UPDATE, infinite.SerializeToString()),
        ):
            with admitted(shard) as frames:
                frames.send(frame)
                with pytest.raises(BrokenFrame, match="the other side closed the connection"):
                    frames.receive()
        head = {"incarnation": incarnation, "writer": "a" * 32, "sequence": 1, "count": 1}
        with admitted(shard) as frames:
            for frame, says in (
                (Frame(INSERT, b"\xff"), "arsing"),
                (
                    Frame(INSERT, pb.InsertRequest(**head).SerializeToString(), vector=8),
                    "too short for an insert",
                ),
                (
                    Frame(INSERT, pb.InsertRequest(**head).SerializeToString(), vector=128),
                    "are not a whole number of frames",
                ),
                (Frame(INSERT, pb.InsertRequest(**{**head, "writer": "x"}).SerializeToString()), "32 hexadecimal"),
                (Frame(INSERT, pb.InsertRequest(**{**head, "count": 2000}).SerializeToString()), "at most 1000 items"),
                (Frame(SAMPLE, sample, vector=64), "too short for a sample"),
                (Frame(SAMPLE, b"\xff", vector=64), "arsing"),
            ):
                frames.send(frame)
                answer, descriptor = frames.receive()
                assert descriptor is None and answer.kind and says in answer.message.decode(), says
        drawn(client, 4)
        assert table_of(shard).size == 1


def test_checked_columns_are_not_in_shared_memory() -> None:
    spec = varied().spec
    layout = InsertLayout(spec)
    memory = memoryview(bytearray(layout.length(3, 2)))
    columns, frames = layout.arrays(3, memory)
    assert len(frames) == 2
    owned, _ = layout.checked_arrays(3, memory, copied=True)
    assert not any(np.shares_memory(owned[name], columns[name]) for name in columns)
    columns["going_on"].view(np.uint8)[1, 1] = 2
    with pytest.raises(ValueError, match="'going_on' must be booleans: bytes 0 or 1"):
        layout.checked_arrays(3, memory, copied=True)


CHILD = """
import sys
import numpy as np
from support.replay_servers import client_of, numbered, numbers
with client_of([sys.argv[1]], numbered()) as client:
    client.writers[0].insert(numbers(1, 2, 3))
    held = [client.sample(32, 30.0) for _ in range(5)]
    print("both ways are in use", flush=True)
    while True:
        client.writers[0].insert(numbers(1))
        client.sample(32, 30.0)
"""


def test_killed_client_leaks_nothing(processes: Processes, tmp_path: Path) -> None:
    server, address = start_replay_server(processes, write_replay_configuration(tmp_path))
    with client_of([address], numbered()) as client:
        client.writers[0].insert(numbers(1))
        drawn(client, 1)
        mapped = [m.path for m in psutil.Process(server.pid).memory_maps(grouped=False) if "memfd:relaax" in m.path]
        assert mapped, "memory is shared"
        before = descriptors(server), len(mapped)
        child = processes.start_python(CHILD, address, env={**os.environ, "PYTHONPATH": os.pathsep.join(path())})
        child.wait_for_line("both ways are in use")
        child.kill()

        def left() -> tuple[int, int]:
            maps = psutil.Process(server.pid).memory_maps(grouped=False)
            return descriptors(server), sum("memfd:relaax" in m.path for m in maps)

        wait_until(lambda: all(now <= then for now, then in zip(left(), before, strict=True)), "all is released", 60)
        drawn(client, 4)
    assert server.stop() == 0


def path() -> list[str]:
    root = Path(__file__).resolve().parents[2]
    return [str(root), str(root / "tests")]


def test_samples_are_unchanged_after_the_server_is_killed(processes: Processes, tmp_path: Path) -> None:
    server, address = start_replay_server(processes, write_replay_configuration(tmp_path))
    with client_of([address], numbered(), patience=0.5) as client:
        client.writers[0].insert(numbers(*range(50)))
        held = drawn(client, 64)
        copy = held.columns["number"].copy()
        server.kill()
        np.testing.assert_array_equal(held.columns["number"], copy)
