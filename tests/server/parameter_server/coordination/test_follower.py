"""A shard other than shard 0, and the orders that shard 0 sends it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from relaax.parameters.interfaces import TRAIN
from relaax.server.command.termination import Reason
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc
from relaax.server.parameter_server.coordination.follower import Follower
from relaax.server.parameter_server.shard.model import ShardPosition
from relaax.server.parameter_server.shard.state import SnapshotMemory
from support.parameter_servers import Models, fingerprint
from support.processes import wait_until
from support.shards import OneShard
from support.unused_address import unused_address


class RawLeader(pb_grpc.CoordinationServiceServicer):
    """A fake shard 0. It sends the orders of a test to the shard that joined last."""

    def __init__(self) -> None:
        self.received: queue.Queue[pb.JoinRequest] = queue.Queue()
        self.orders: queue.Queue[pb.JoinResponse | None] = queue.Queue()
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self._number = 0

    def Join(self, request_iterator: Any, context: Any) -> Iterator[pb.JoinResponse]:
        if self.refusal is not None:
            context.abort(*self.refusal)
        orders = self.orders = queue.Queue()
        context.add_callback(lambda: orders.put(None))
        threading.Thread(target=self._receive, args=(request_iterator,), daemon=True).start()
        while (order := orders.get()) is not None:
            yield order

    def introduction(self) -> pb.Introduction:
        return self.received.get(timeout=30).introduction

    def order(self, **order: Any) -> pb.Answer:
        """Send an order and return the answer."""
        self._number += 1
        self.orders.put(pb.JoinResponse(order=self._number, **order))
        answer = self.received.get(timeout=30).answer
        assert answer.order == self._number
        return answer

    def _receive(self, requests: Any) -> None:
        try:
            for request in requests:
                self.received.put(request)
        except grpc.RpcError:
            pass


@contextmanager
def following(directory: Path | None = None, refusal: Any = None) -> Iterator[tuple[RawLeader, OneShard]]:
    leader, pool = RawLeader(), futures.ThreadPoolExecutor(4)
    leader.refusal = refusal
    server = grpc.server(pool)
    pb_grpc.add_CoordinationServiceServicer_to_server(leader, server)
    first = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    shard = OneShard(ShardPosition(1, 2), Models(), directory, first)
    try:
        yield leader, shard
    finally:
        leader.orders.put(pb.JoinResponse(end=pb.End(saved=True)))
        if shard.ended is None:
            shard.stop()
        server.stop(None).wait()
        pool.shutdown()
        shard.ends.close()


def serve(leader: RawLeader, shard: OneShard) -> None:
    """Send orders until the shard serves a model."""
    assert leader.introduction().shard == 1
    assert not leader.order(restore=pb.Restore(incarnation=7)).failure
    assert shard.core.access.closed
    assert not leader.order(resume=pb.Resume()).failure
    shard.core.register("0" * 32, fingerprint(), "", 1, TRAIN, 1)


def test_shard_serves_only_with_shard_0() -> None:
    with following() as (leader, shard):
        assert "shard 0 at 127.0.0.1:" in shard.core.access.closed
        serve(leader, shard)
        assert (shard.core.incarnation, shard.core.access.closed) == (7, "")
        assert leader.order(hold=pb.Hold(sentence="shard 2 of 3 is unavailable")).state
        assert shard.core.access.closed == "shard 2 of 3 is unavailable"
        leader.orders.put(None)  # the stream ends
        wait_until(lambda: "is unavailable: waiting for it" in shard.core.access.closed, "the shard closes")
        assert leader.introduction().instance  # the shard has reconnected


def test_hold_without_a_resume_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaax.server.parameter_server.coordination.follower.HOLD", 0.05)
    with following() as (leader, shard):
        serve(leader, shard)
        assert not leader.order(hold=pb.Hold(cut=1)).failure
        with shard.core.access.enter(update=True):  # waits until the hold has ended
            pass
        answer = leader.order(resume=pb.Resume())
        assert (answer.failure, answer.sentence) == (
            pb.FAILURE_BROKEN,
            "shard 1 of 2: the hold expired before the order to resume",
        )


def test_only_the_snapshot_of_the_requested_cut_is_written(tmp_path: Path) -> None:
    with following(tmp_path) as (leader, shard):
        serve(leader, shard)
        leader.order(hold=pb.Hold(cut=3))
        assert not leader.order(resume=pb.Resume()).failure
        answer = leader.order(snapshot=pb.Snapshot(cut=2, checkpoint="00000001-0"))
        assert (answer.failure, answer.sentence) == (pb.FAILURE_BROKEN, "shard 1 of 2 has no snapshot of this cut")
        answer = leader.order(snapshot=pb.Snapshot(cut=3, checkpoint="00000001-0"))
        assert not answer.failure
        assert '"key": "00000001-0/shard-1.safetensors"' in answer.part
        assert '"start": 4, "end": 8' in answer.shard
        # The snapshot is dropped after it is written.
        assert leader.order(snapshot=pb.Snapshot(cut=3, checkpoint="00000002-0")).failure == pb.FAILURE_BROKEN


def test_snapshot_memory_is_allocated_before_the_hold_and_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(tmp_path) as (leader, shard):
        serve(leader, shard)
        follower, model = shard.shards, shard.core.model
        assert isinstance(follower, Follower)
        assert model is not None
        state = leader.order(prepare=pb.Prepare()).state
        assert leader.order(prepare=pb.Prepare(memory=True)).state == state != ""
        with monkeypatch.context() as patched:
            patched.setattr(SnapshotMemory, "touch", lambda copies: pytest.fail("memory is allocated during the hold"))
            assert leader.order(hold=pb.Hold(cut=1)).state == state
        assert not model.shard._prepared
        assert not leader.order(resume=pb.Resume()).failure
        # A hold for the end does not change the snapshot of the cut.
        leader.order(hold=pb.Hold(sentence="ending"))
        assert not leader.order(snapshot=pb.Snapshot(cut=1, checkpoint="00000001-0")).failure
        assert not follower._kept
        # An unused snapshot and unused memory are freed.
        leader.order(resume=pb.Resume())
        leader.order(hold=pb.Hold(cut=2))
        leader.order(resume=pb.Resume())
        assert follower._kept
        leader.order(prepare=pb.Prepare(memory=True))
        assert not follower._kept
        assert model.shard._prepared
        leader.order(prepare=pb.Prepare())
        assert not model.shard._prepared


def test_failed_order_ends_the_stream_and_the_shard_joins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with following() as (leader, shard):
        serve(leader, shard)
        with monkeypatch.context() as patched:
            patched.setattr(SnapshotMemory, "touch", raise_memory_error)
            leader.orders.put(pb.JoinResponse(order=9, prepare=pb.Prepare(memory=True)))
            assert leader.introduction().instance
        assert not leader.order(restore=pb.Restore(incarnation=8)).failure
        assert not leader.order(resume=pb.Resume()).failure
        assert (shard.core.incarnation, shard.core.access.closed) == (8, "")


def raise_memory_error(_: object) -> None:
    raise MemoryError


def test_snapshot_of_a_broken_hold_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaax.server.parameter_server.coordination.follower.HOLD", 0.0)
    with following() as (leader, shard):
        serve(leader, shard)
        leader.order(hold=pb.Hold(cut=1))
        assert leader.order(resume=pb.Resume()).failure == pb.FAILURE_BROKEN
        assert isinstance(shard.shards, Follower)
        assert shard.shards._kept is None


def test_unwritable_store_is_reported(tmp_path: Path) -> None:
    with following(tmp_path / "file") as (leader, shard):
        serve(leader, shard)
        (tmp_path / "file").write_text("not a folder")
        leader.order(hold=pb.Hold(cut=1))
        answer = leader.order(snapshot=pb.Snapshot(cut=1, checkpoint="00000001-0"))
        assert answer.failure == pb.FAILURE_STORE
        assert "cannot write" in answer.sentence


def test_missing_checkpoint_is_reported_as_damaged(tmp_path: Path) -> None:
    with following(tmp_path) as (leader, shard):
        leader.introduction()
        answer = leader.order(restore=pb.Restore(incarnation=7, checkpoint="00000001-0"))
        assert answer.failure == pb.FAILURE_DAMAGED
        assert shard.core.access.closed


def test_terminated_shard_ends_after_shard_0_confirms() -> None:
    with following() as (leader, shard):
        serve(leader, shard)
        shard.ends.put(Reason.TERMINATED)
        assert leader.received.get(timeout=30).HasField("leaving")
        leader.orders.put(pb.JoinResponse(end=pb.End(saved=True)))
        assert shard.join() == (Reason.TERMINATED, True)


def test_shard_terminated_during_a_restore_ends_at_once() -> None:
    with following() as (leader, shard):
        leader.introduction()
        assert not leader.order(restore=pb.Restore(incarnation=7)).failure
        shard.ends.put(Reason.TERMINATED)
        assert shard.join() == (Reason.TERMINATED, True)
        assert leader.received.empty()


def test_wait_for_shard_0_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with unused_address() as address:
        shard = OneShard(ShardPosition(1, 2), Models(), None, address)
        try:
            wait_until(lambda: "is unavailable: waiting for it (" in caplog.text, "the wait is logged")
        finally:
            shard.stop()
            shard.ends.close()
    assert caplog.text.count("waiting for it (") == 1


def test_shard_ends_with_shard_0(caplog: pytest.LogCaptureFixture) -> None:
    with following() as (leader, shard):
        serve(leader, shard)
        leader.orders.put(pb.JoinResponse(end=pb.End(saved=False)))
        assert shard.join() == (Reason.RELEASED, False)
    assert "is unavailable" not in caplog.text


def test_refused_shard_ends() -> None:
    with following(refusal=(grpc.StatusCode.FAILED_PRECONDITION, "you do not belong here")) as (_, shard):
        assert shard.join() == (Reason.REFUSED, False)
        assert shard.server.refusal == "you do not belong here"


def test_shard_ends_if_its_position_stays_occupied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaax.server.parameter_server.coordination.follower.PATIENCE", 0.2)
    with following(refusal=(grpc.StatusCode.ALREADY_EXISTS, "shard 1 of 2 is there already")) as (_, shard):
        assert shard.join() == (Reason.REFUSED, False)
        assert shard.server.refusal == "shard 1 of 2 is there already"
