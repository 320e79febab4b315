"""Shard 0, and the messages that other shards send it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore, StoreError
from relaax.parameters.interfaces import TRAIN, ParameterServerUnavailable
from relaax.server.command.termination import Reason
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination.leader import Leader
from relaax.server.parameter_server.shard.model import ShardPosition
from relaax.server.parameter_server.shard.state import SnapshotMemory
from support.parameter_servers import Models, fingerprint, parameter_client, registration
from support.processes import wait_until
from support.raw_shard import RawShard, raw_shard
from support.shards import OneShard

WORKER = "0" * 32


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[OneShard]:
    shard = OneShard(ShardPosition(0, 2), Models(), tmp_path, "")
    yield shard
    if shard.ended is None:
        shard.stop()
    shard.ends.close()


@pytest.fixture
def raw(leader: OneShard, tmp_path: Path) -> Iterator[RawShard]:
    with raw_shard(leader.address, location=str(tmp_path)) as shard:
        yield shard


def serve(leader: OneShard, raw: RawShard, model: bool = True) -> None:
    """Answer orders until shard 0 serves, then register a model if `model` is true."""
    raw.answer(raw.order("resume"), state="raw")
    wait_until(lambda: not leader.core.access.closed, "shard 0 serves")
    if model:
        leader.core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)


def save(leader: OneShard) -> list[bool]:
    """Start saving a checkpoint in a thread; the returned list receives the outcome."""
    assert leader.checkpointer is not None
    checkpointer, outcome = leader.checkpointer, []

    def run() -> None:
        outcome.append(checkpointer.save())

    threading.Thread(target=run).start()
    return outcome


def write_part(raw: RawShard, order: pb.JoinResponse, folder: Path, ledger: dict[str, list[int]] | None = None) -> None:
    """Write the requested part into `folder` and answer the order."""
    manager, zeros = CheckpointManager(LocalStore(folder)), np.zeros(4, np.float32)
    part = manager.write_part(order.snapshot.checkpoint, "shard-1", {"parameters": zeros})
    counted = {"version": 0, "counters": {"version": 0}, "ledger": ledger or {}}
    described = {"part": "shard-1", "start": 4, "end": 8, **counted}
    raw.answer(order, shard=json.dumps(described), part=json.dumps(part))


@pytest.mark.parametrize(
    ("introduction", "sentence"),
    [
        ({"shards": 3}, "shard 1 of 3 cannot join: shard 0 was started as one of 2"),
        ({"shard": 0}, "shard 0 of 2 cannot join: its index must be from 1 to 1"),
        ({"shard": 2}, "shard 2 of 2 cannot join"),
        ({"description": '{"seed": 1}'}, "configuration differs from shard 0: seed: 1 at shard 1, None at shard 0"),
        ({"description": "{"}, "its description is not JSON"),
        ({"location": ""}, "it keeps no checkpoints, shard 0 keeps checkpoints in "),
        ({"location": "/elsewhere"}, "all shards need the same location"),
    ],
)
def test_shard_that_does_not_match_is_refused(
    leader: OneShard, tmp_path: Path, introduction: dict[str, Any], sentence: str
) -> None:
    with raw_shard(leader.address, **{"location": str(tmp_path), **introduction}) as shard:
        code, details = shard.refusal()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert sentence in details
    assert leader.core.access.closed == "shard 1 of 2 is unavailable: waiting for it"


def test_shard_may_join_again_only_from_the_same_process(leader: OneShard, raw: RawShard, tmp_path: Path) -> None:
    serve(leader, raw)
    with raw_shard(leader.address, location=str(tmp_path), instance="other") as second:
        code, details = second.refusal()
        assert (code, details) == (
            grpc.StatusCode.ALREADY_EXISTS,
            "shard 1 of 2 has already joined from another process",
        )
    assert not leader.core.access.closed
    with raw_shard(leader.address, location=str(tmp_path)) as again:  # reconnects before shard 0 sees the broken stream
        again.order("restore")


def test_error_of_a_worker_names_the_unavailable_shard(leader: OneShard) -> None:
    sentence = r"was unavailable for 0\.2 s: shard 1 of 2 is unavailable: waiting for it"
    with (
        parameter_client(leader.address, unavailable_after=0.2) as client,
        pytest.raises(ParameterServerUnavailable, match=sentence),
    ):
        client.register(registration())


def test_silent_shard_delays_the_checkpoint_but_no_update(
    leader: OneShard, raw: RawShard, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    hold = raw.order("hold")
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]
    assert "shard 1 of 2 does not answer" in caplog.text
    with leader.core.access.enter(update=True):
        pass
    raw.answer(hold, state="too late")
    raw.order("resume")


def test_broken_hold_of_another_shard_fails_the_cut(
    leader: OneShard, raw: RawShard, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.answer(raw.order("hold"), state="raw")
    raw.answer(raw.order("resume"), failure=pb.FAILURE_BROKEN)
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]
    assert "the barrier between the shards took too long" in caplog.text


def test_shard_that_joins_during_a_hold_must_restore(leader: OneShard, raw: RawShard, tmp_path: Path) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.order("hold")
    with raw_shard(leader.address, location=str(tmp_path)) as again:  # replaces the shard that holds
        wait_until(lambda: outcome, "the save has failed")
        kinds = again.kinds("restore")
    assert outcome == [False]
    assert "resume" not in kinds


def test_snapshot_memory_is_allocated_before_the_hold(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    access, touch, hold = leader.core.access, SnapshotMemory.touch, leader.core.access.hold
    calls: list[str] = []

    def record_touch(copies: SnapshotMemory) -> None:
        calls.append("touch")
        touch(copies)

    def record_hold(seconds: float) -> bool:
        calls.append("hold")
        return hold(seconds)

    monkeypatch.setattr(SnapshotMemory, "touch", record_touch)
    monkeypatch.setattr(access, "hold", record_hold)
    outcome = save(leader)
    order = raw.order("prepare")
    assert order.prepare.memory
    assert calls == []
    raw.answer(order, state="raw")
    write_part(raw, raw.order("snapshot"), tmp_path)
    wait_until(lambda: outcome, "the checkpoint is saved")
    assert (outcome, calls) == ([True], ["touch", "hold"])


def test_memory_is_freed_if_another_shard_cannot_prepare(
    leader: OneShard, raw: RawShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaax.server.parameter_server.coordination.leader.PREPARE", 0.1)
    serve(leader, raw)
    outcome = save(leader)
    assert raw.order("prepare").prepare.memory
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]
    assert not raw.order("prepare").prepare.memory
    assert leader.core.model is not None
    assert leader.core.model.shard._prepared is None


def test_state_is_not_copied_while_a_shard_is_missing(
    leader: OneShard, raw: RawShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    raw.go()
    wait_until(lambda: leader.core.access.closed, "shard 0 waits for the other shard")
    monkeypatch.setattr(leader.core, "state", lambda: pytest.fail("the state is copied"))
    outcome = save(leader)
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]


def test_stalled_deletion_in_the_store_does_not_block_shards(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    assert leader.manager is not None
    stalled, released = threading.Event(), threading.Event()

    def stall_and_fail() -> None:
        stalled.set()
        assert released.wait(30)
        raise StoreError("no answer")

    monkeypatch.setattr(leader.manager, "_delete_old", stall_and_fail)
    outcome = save(leader)
    try:
        write_part(raw, raw.order("snapshot"), tmp_path)
        assert stalled.wait(30)
        raw.go()
        wait_until(lambda: leader.core.access.closed, "shard 0 waits for the other shard")
        assert outcome == []
    finally:
        released.set()
    wait_until(lambda: outcome, "the checkpoint is saved")
    assert outcome == [True]


def test_shard_lost_while_writing_leaves_no_checkpoint(leader: OneShard, raw: RawShard, tmp_path: Path) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.order("snapshot")
    raw.go()
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]
    assert list(tmp_path.rglob("*.safetensors")) == []
    wait_until(lambda: leader.core.access.closed, "shard 0 waits for the other shard")


@pytest.mark.parametrize("rejoins", [False, True])
def test_shard_lost_after_writing_leaves_no_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rejoins: bool
) -> None:
    serve(leader, raw)
    assert leader.manager is not None
    assert isinstance(leader.shards, Leader)
    members, store, listed = leader.shards.members, leader.manager.store, threading.Event()
    keys_of = store.list

    with contextlib.ExitStack() as later:

        def list_and_disconnect(prefix: str = "") -> list[str]:
            """List all parts; after the first listing, disconnect the other shard."""
            keys = keys_of(prefix)
            if prefix and not listed.is_set():
                listed.set()
                assert len(keys) == 2
                before = members.changes
                raw.go()
                wait_until(lambda: members.changes == before + 1, "the shard has disconnected")
                if rejoins:  # as a new process, which has no snapshot of the cut
                    later.enter_context(raw_shard(leader.address, location=str(tmp_path), instance="other"))
                    wait_until(lambda: members.missing() is None, "the shard has joined again")
            return keys

        monkeypatch.setattr(store, "list", list_and_disconnect)
        outcome = save(leader)
        write_part(raw, raw.order("snapshot"), tmp_path)
        wait_until(lambda: outcome, "the save has failed")
        assert outcome == [False]
        assert listed.is_set()
        assert CheckpointManager(LocalStore(tmp_path)).published() == []
        assert list(tmp_path.rglob("*.safetensors")) == []


def test_unwritable_part_delays_only_the_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.answer(raw.order("snapshot"), failure=pb.FAILURE_STORE, sentence="no space left")
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]
    assert "is late: shard 1 of 2: no space left" in caplog.text
    assert leader.core.status().checkpoint_error == "shard 1 of 2: no space left"
    assert not leader.core.access.closed
    assert CheckpointManager(LocalStore(tmp_path)).published() == []
    # The next attempt makes a new cut.
    outcome = save(leader)
    order = raw.order("snapshot")
    write_part(raw, order, tmp_path)
    wait_until(lambda: outcome, "the checkpoint is saved")
    assert outcome == [True]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 1
    assert leader.core.status().checkpoint_error == ""
    # Without an update, no checkpoint is written.
    outcome = save(leader)
    raw.answer(raw.order("prepare"), state="raw")  # without a hold
    wait_until(lambda: outcome, "the save has ended")
    assert outcome == [True]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 1


def test_update_of_another_shard_alone_is_saved(leader: OneShard, raw: RawShard, tmp_path: Path) -> None:
    serve(leader, raw)
    outcome = save(leader)
    write_part(raw, raw.order("snapshot"), tmp_path)
    wait_until(lambda: outcome, "the checkpoint is saved")
    # One part of a push arrived, but not shard 0's: the state of shard 0 is unchanged.
    outcome = save(leader)
    raw.answer(raw.order("prepare"), state="half a push")
    raw.answer(raw.order("hold"), state="half a push")
    write_part(raw, raw.order("snapshot"), tmp_path)
    wait_until(lambda: outcome, "another checkpoint is saved")
    assert outcome == [True]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 2


def test_part_outside_the_shared_folder_fails_the_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    write_part(raw, raw.order("snapshot"), tmp_path / "of-another-machine")
    wait_until(lambda: outcome, "the save has failed")
    assert outcome == [False]
    assert "shard-1 was written to" in caplog.text
    assert "but shard 0 cannot see it there: use a folder that all machines share" in caplog.text
    assert CheckpointManager(LocalStore(tmp_path)).published() == []


def test_ledger_of_16384_workers_fits_a_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = {f"{number:032x}": [10**12 + number, 1, 10**6] for number in range(16_384)}
    leader = OneShard(ShardPosition(0, 2), Models(), tmp_path, "", parameters=8)
    try:
        with raw_shard(leader.address, location=str(tmp_path)) as shard:
            serve(leader, shard)
            outcome = save(leader)
            write_part(shard, shard.order("snapshot"), tmp_path, ledger)
            wait_until(lambda: outcome, "the checkpoint is saved")
            assert outcome == [True], caplog.text
    finally:
        leader.stop()
        leader.ends.close()


def test_checkpoint_damaged_at_one_shard_is_skipped_by_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = OneShard(ShardPosition(0, 2), Models(), tmp_path, "")
    with raw_shard(first.address, location=str(tmp_path)) as shard:
        serve(first, shard)
        for number in (1, 2):
            assert first.core.model is not None
            first.core.model.shard.remove_worker("unknown")
            first.shards._saved = ()  # type: ignore[union-attr]
            assert first.checkpointer is not None
            first.checkpointer._saved_mark = None
            outcome = save(first)
            write_part(shard, shard.order("snapshot"), tmp_path)
            wait_until(lambda outcome=outcome: outcome, f"checkpoint {number} is saved")
    first.vanish()
    first.ends.close()
    newest, older = CheckpointManager(LocalStore(tmp_path)).published()
    leader = OneShard(ShardPosition(0, 2), Models(), tmp_path, "")
    try:
        with raw_shard(leader.address, location=str(tmp_path)) as shard:
            order = shard.order("restore")
            assert order.restore.checkpoint == newest
            shard.answer(order, failure=pb.FAILURE_DAMAGED, sentence="shard 1 of 2: its SHA-256 differs")
            order = shard.order("restore")
            assert order.restore.checkpoint == older
            shard.answer(order, state="raw")
            wait_until(lambda: not leader.core.access.closed, "both serve")
        assert f"all shards skip the damaged checkpoint {newest}: shard 1 of 2: its SHA-256 differs" in caplog.text
    finally:
        leader.stop()
        leader.ends.close()


def test_leaving_shard_is_released_after_a_checkpoint(leader: OneShard, raw: RawShard, tmp_path: Path) -> None:
    serve(leader, raw)
    raw.send(leaving=pb.Leaving())
    order = raw.order("snapshot")
    assert leader.core.access.closed == "shard 1 of 2 is leaving"
    write_part(raw, order, tmp_path)
    assert raw.order("end").end.saved
    raw.go()
    wait_until(lambda: "is unavailable" in leader.core.access.closed, "shard 0 waits for it")
    leader.stop(Reason.INTERRUPTED)
    assert leader.ended == (Reason.INTERRUPTED, True)  # no update since the checkpoint


def test_end_after_a_shard_was_released_logs_no_warning(
    leader: OneShard, raw: RawShard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    raw.send(leaving=pb.Leaving())
    write_part(raw, raw.order("snapshot"), tmp_path)
    assert raw.order("end").end.saved
    leader.shards.stop_updates("the parameter server is ending")  # type: ignore[union-attr]
    outcome = save(leader)
    raw.order("hold")
    raw.go()
    wait_until(lambda: outcome, "the save has ended")
    assert outcome == [True]
    assert "late" not in caplog.text


def test_end_holds_all_shards_before_the_last_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    monkeypatch.setattr("relaax.server.parameter_server.coordination.leader.HOLD", 0.0)  # a hold expires at once
    leader.ends.put(Reason.TERMINATED)
    while not (order := raw.order("hold")).hold.cut:
        raw.answer(order, state="raw")
    assert order.hold.sentence == "the parameter server is ending"
    raw.answer(order, state="raw")
    order = raw.order("snapshot")
    write_part(raw, order, tmp_path)
    assert raw.order("end").end.saved
    raw.go()
    assert leader.join() == (Reason.TERMINATED, True)
