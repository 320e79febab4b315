"""Malformed requests are rejected with one sentence, without a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from relaax.replay import replay_pb2 as pb
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from relaax.replay.wire import MAX_MESSAGE, SampleLayout, declaration_to_message, to_bytes
from support.replay_servers import Shard, numbered, pictured, serving

WRITER = "0123456789abcdef" * 2
PATIENCE = 60.0
INVALID = grpc.StatusCode.INVALID_ARGUMENT


class Requests:
    """A stub of a shard, with two registered tables."""

    def __init__(self, shard: Shard, channel: grpc.Channel) -> None:
        self.shard = shard
        self.stub = ReplayServiceStub(channel)
        self.numbers = self.registered(numbered())
        self.pictures = self.registered(pictured())

    def registered(self, declaration: Any, session: str = "") -> str:
        request = pb.ReplayServiceRegisterRequest(table=declaration_to_message(declaration), session=session)
        answer: pb.ReplayServiceRegisterResponse = self.stub.Register(request, timeout=PATIENCE)
        return answer.incarnation

    def insert(self, **changes: Any) -> pb.InsertResponse:
        given = {"writer": WRITER, "sequence": 1, "count": 2, "columns": [column("number", np.arange(2))]}
        request = pb.InsertRequest(**{"incarnation": self.numbers, **given, **changes})
        answer: pb.InsertResponse = self.stub.Insert(request, timeout=PATIENCE)
        return answer

    def pictured(self, **changes: Any) -> pb.InsertResponse:
        columns = [column("number", np.arange(1)), column("stack", np.array([[0, 1]]))]
        return self.insert(
            **{"incarnation": self.pictures, "count": 1, "columns": columns, "frames": bytes(8), **changes}
        )

    def sample(self, count: int, incarnation: str | None = None, **more: Any) -> pb.SampleResponse:
        request = pb.SampleRequest(
            incarnation=self.numbers if incarnation is None else incarnation, count=count, **more
        )
        answer: pb.SampleResponse = self.stub.Sample(request, timeout=PATIENCE)
        return answer

    def update(self, keys: bytes, priorities: bytes, incarnation: str | None = None) -> int:
        table = self.numbers if incarnation is None else incarnation
        request = pb.UpdatePrioritiesRequest(incarnation=table, keys=keys, priorities=priorities)
        answer: pb.UpdatePrioritiesResponse = self.stub.UpdatePriorities(request, timeout=PATIENCE)
        return answer.applied

    def sizes(self) -> dict[str, int]:
        answer = self.stub.GetStatus(pb.ReplayServiceGetStatusRequest(), timeout=PATIENCE)
        return {table.name: table.size for table in answer.tables}


def column(name: str, numbers: np.ndarray) -> pb.Column:
    return pb.Column(name=name, data=to_bytes(numbers))


@pytest.fixture(scope="module")
def requests() -> Iterator[Requests]:
    options = [("grpc.max_send_message_length", 2 * MAX_MESSAGE), ("grpc.max_receive_message_length", MAX_MESSAGE)]
    with serving() as (shard,), grpc.insecure_channel(shard.address, options) as channel:
        yield Requests(shard, channel)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda t: t.insert(writer="somebody"), "writer must be 32 hexadecimal digits"),
        (lambda t: t.insert(writer="0" * 1000), "writer must be 32 hexadecimal digits"),
        (lambda t: t.insert(sequence=0), "the sequence number of an insert must be at least 1"),
        (lambda t: t.insert(count=3), "'number' must be 24 bytes of int64"),
        (lambda t: t.insert(count=1), "'number' must be 8 bytes"),
        (lambda t: t.insert(count=2**32 - 1), "an insert may have at most 1000 items, not 4294967295"),
        (lambda t: t.insert(columns=[]), "columns of table 'numbers' must be"),
        (lambda t: t.insert(columns=[column("number", np.arange(2))] * 2), "each exactly once"),
        (lambda t: t.insert(columns=[column("number", np.arange(2, dtype=np.int32))]), "must be 16 bytes of int64"),
        (lambda t: t.insert(columns=[column("numbre", np.arange(2))]), "columns of table 'numbers' must be"),
        (lambda t: t.insert(priorities=to_bytes(np.ones(3))), "priorities must be 16 bytes of float64"),
        (lambda t: t.insert(priorities=b"\0"), "priorities must be 16 bytes"),
        (lambda t: t.insert(priorities=to_bytes(np.array([1.0, np.nan]))), "a priority must be between 0"),
        (lambda t: t.insert(priorities=to_bytes(np.array([1.0, -1.0]))), "a priority must be between 0"),
        (lambda t: t.insert(priorities=to_bytes(np.array([1.0, np.inf]))), "a priority must be between 0"),
        (lambda t: t.insert(frames=bytes(4)), "table 'numbers' has no frames"),
        (lambda t: t.pictured(frames=bytes(7)), "frames must be 4 bytes"),
        (lambda t: t.pictured(first_frame=2**63), "frame numbers must be at most"),
        (lambda t: t.pictured(keep_from=2**63), "frame numbers must be at most"),
        (lambda t: t.sample(2**31), "a sample of table 'numbers' may have at most 65536 items, not 2147483648"),
        (lambda t: t.update(bytes(16), to_bytes(np.array([1.0, np.nan]))), "a priority must be between 0"),
        (lambda t: t.update(bytes(16), bytes(8)), "priorities must be 16 bytes"),
        (lambda t: t.update(bytes(15), bytes(8)), "keys must be 8 bytes"),
        (lambda t: t.update(bytes(8 * (2**16 + 1)), b""), "a call can update at most 65536 priorities, not 65537"),
        (lambda t: t.stub.Insert(pb.InsertRequest(incarnation=t.numbers), timeout=PATIENCE), "writer must be"),
        (
            lambda t: t.stub.Register(pb.ReplayServiceRegisterRequest(), timeout=PATIENCE),
            "name of a table must have 1 to 128 printable characters",
        ),
        (
            lambda t: t.stub.Register(
                pb.ReplayServiceRegisterRequest(table=declaration_to_message(numbered()), session="\n"),
                timeout=PATIENCE,
            ),
            "name of a session must have",
        ),
    ],
)
def test_malformed_requests_are_rejected(requests: Requests, ask: Callable[[Requests], object], says: str) -> None:
    before = requests.sizes()
    with pytest.raises(grpc.RpcError) as refused:
        ask(requests)
    assert refused.value.code() is INVALID
    assert says in refused.value.details()
    assert requests.sizes() == before


@pytest.mark.parametrize(
    ("count", "arrays", "says"),
    [
        (2, bytes(8), "too short for an insert of 2 items"),
        (2, bytes(72), "not a whole number of frames"),
        (1001, bytes(64), "at most 1000 items, not 1001"),
    ],
)
def test_malformed_packed_inserts_are_rejected(requests: Requests, count: int, arrays: bytes, says: str) -> None:
    before = requests.sizes()
    with pytest.raises(grpc.RpcError) as refused:
        requests.insert(count=count, columns=[], arrays=arrays)
    assert refused.value.code() is INVALID
    assert says in refused.value.details()
    assert requests.sizes() == before


@pytest.mark.parametrize("wrong", [0, 1])
def test_packed_booleans_are_checked(requests: Requests, wrong: int) -> None:
    declaration = TableDeclaration(TableSpec("truths", {"truth": Field("bool")}, 8))
    table = requests.registered(declaration)
    given = {"incarnation": table, "writer": WRITER, "count": 1, "arrays": bytes([2 * wrong, *bytes(63)])}
    if wrong:
        with pytest.raises(grpc.RpcError, match="'truth' must be booleans"):
            requests.stub.Insert(pb.InsertRequest(sequence=2, **given), timeout=PATIENCE)
    else:
        assert requests.stub.Insert(pb.InsertRequest(sequence=1, **given), timeout=PATIENCE).outcome == pb.OUTCOME_DONE
    answer = requests.sample(1, table, packed=True)
    assert len(answer.arrays) == 4 * 64
    assert not (answer.columns or answer.keys)
    with pytest.raises(ValueError, match="'truth' must be booleans"):
        SampleLayout(declaration.spec).received_arrays(1, memoryview(bytes([*bytes(192), 3, *bytes(63)])))


def test_priorities_are_updated_before_the_sample(requests: Requests) -> None:
    table = requests.registered(numbered(), session="updates")
    assert requests.insert(incarnation=table).outcome == pb.OUTCOME_DONE
    keys = np.frombuffer(requests.sample(64, table).keys, np.uint64)
    priorities = np.where(keys == keys.min(), 0.0, 1.0)
    update = pb.UpdatePrioritiesRequest(incarnation=table, keys=to_bytes(keys), priorities=to_bytes(priorities))
    answer = requests.sample(64, table, updates=[update, update])
    assert set(np.frombuffer(answer.keys, np.uint64)) == {keys.max()}
    many = pb.UpdatePrioritiesRequest(incarnation=table, keys=bytes(8 * 2**15), priorities=bytes(8 * 2**15))
    with pytest.raises(grpc.RpcError, match="at most 65536 new priorities, not 98304"):
        requests.sample(1, table, updates=[many] * 3)


def test_long_packed_samples_are_refused_before_memory_is_taken(requests: Requests) -> None:
    with pytest.raises(grpc.RpcError, match="at most 65536 items, not 4294967295"):
        requests.sample(2**32 - 1, packed=True)


def test_undecodable_bytes_are_rejected(requests: Requests) -> None:
    with grpc.insecure_channel(requests.shard.address) as channel:
        insert = channel.unary_unary("/relaax.v1.ReplayService/Insert")
        with pytest.raises(grpc.RpcError) as refused:
            insert(b"\xff" * 100, timeout=PATIENCE)
    assert refused.value.code() is INVALID
    assert "the request cannot be decoded" in refused.value.details()


def test_too_long_message_is_not_read(requests: Requests) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        requests.insert(frames=bytes(MAX_MESSAGE + 1))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_missing_frames_are_requested(requests: Requests) -> None:
    answer = requests.pictured(
        writer="1" * 32, columns=[column("number", np.arange(1)), column("stack", np.array([[5, 6]]))]
    )
    assert (answer.outcome, answer.expected) == (pb.OUTCOME_OUT_OF_STEP, 1)
    assert requests.pictured(writer="1" * 32).outcome == pb.OUTCOME_DONE
    assert requests.pictured(writer="1" * 32).outcome == pb.OUTCOME_DUPLICATE
    largest = requests.pictured(writer="1" * 32, sequence=2**64 - 1)
    assert (largest.outcome, largest.expected) == (pb.OUTCOME_OUT_OF_STEP, 2)


def test_dropped_table_is_reported(requests: Requests) -> None:
    gone = "f" * 32
    assert requests.insert(incarnation=gone).outcome == pb.OUTCOME_INCARNATION_ENDED
    assert requests.sample(3, gone).incarnation_ended
    before = requests.shard.service.lost_updates
    assert requests.update(bytes(16), bytes(16), gone) == 0
    assert requests.shard.service.lost_updates == before + 2
    requests.stub.Leave(pb.ReplayServiceLeaveRequest(incarnation=gone, writer=WRITER), timeout=PATIENCE)


@pytest.mark.parametrize("wait", [float("nan"), float("-inf"), -1.0, 0.0])
def test_invalid_wait_does_not_wait(requests: Requests, wait: float) -> None:
    empty = requests.registered(pictured(min_size=64), session=str(wait))
    assert requests.sample(1, empty, wait=wait).not_yet


def test_state_is_returned_without_items(requests: Requests) -> None:
    answer = requests.sample(0)
    assert not answer.columns and answer.state.total_priority == answer.state.size
