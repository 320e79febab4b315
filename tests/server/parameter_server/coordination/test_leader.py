"""Shard 0, and what other shards may do to it."""

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
    """Answer until shard 0 serves; it has a model then, which has been pushed to."""
    raw.answer(raw.order("resume"), state="raw")
    wait_until(lambda: not leader.core.access.closed, "shard 0 serves")
    if model:
        leader.core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)


def save(leader: OneShard) -> list[bool]:
    """Begin to save a checkpoint; the list gets the outcome."""
    assert leader.checkpointer is not None
    checkpointer, outcome = leader.checkpointer, []

    def run() -> None:
        outcome.append(checkpointer.save())

    threading.Thread(target=run).start()
    return outcome


def written(raw: RawShard, order: pb.JoinResponse, folder: Path, ledger: dict[str, list[int]] | None = None) -> None:
    """Write the part that is asked for into this folder, and say so."""
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
def test_who_does_not_belong_here_is_refused(
    leader: OneShard, tmp_path: Path, introduction: dict[str, Any], sentence: str
) -> None:
    with raw_shard(leader.address, **{"location": str(tmp_path), **introduction}) as shard:
        code, details = shard.refusal()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert sentence in details
    assert leader.core.access.closed == "shard 1 of 2 is unavailable: waiting for it"


def test_a_place_is_taken_by_one_process_which_may_take_it_again(
    leader: OneShard, raw: RawShard, tmp_path: Path
) -> None:
    serve(leader, raw)
    with raw_shard(leader.address, location=str(tmp_path), instance="other") as second:
        code, details = second.refusal()
        assert (code, details) == (
            grpc.StatusCode.ALREADY_EXISTS,
            "shard 1 of 2 has already joined from another process",
        )
    assert not leader.core.access.closed
    with raw_shard(leader.address, location=str(tmp_path)) as again:  # its first stream broke, and it noticed first
        again.order("restore")


def test_workers_are_told_who_is_away(leader: OneShard) -> None:
    sentence = r"was unavailable for 0\.2 s: shard 1 of 2 is unavailable: waiting for it"
    with (
        parameter_client(leader.address, unavailable_after=0.2) as client,
        pytest.raises(ParameterServerUnavailable, match=sentence),
    ):
        client.register(registration())


def test_a_shard_that_does_not_answer_makes_a_checkpoint_late_and_holds_nobody(
    leader: OneShard, raw: RawShard, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    hold = raw.order("hold")
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]
    assert "shard 1 of 2 does not answer" in caplog.text
    with leader.core.access.enter(update=True):
        pass
    raw.answer(hold, state="too late")
    raw.order("resume")


def test_a_hold_that_broke_elsewhere_is_no_cut(
    leader: OneShard, raw: RawShard, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.answer(raw.order("hold"), state="raw")
    raw.answer(raw.order("resume"), failure=pb.FAILURE_BROKEN)
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]
    assert "the barrier between the shards took too long" in caplog.text


def test_who_joins_while_others_are_held_stays_closed_until_all_have_returned(
    leader: OneShard, raw: RawShard, tmp_path: Path
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.order("hold")
    with raw_shard(leader.address, location=str(tmp_path)) as again:  # in the place of the one that is held
        wait_until(lambda: outcome, "the checkpoint is given up")
        kinds = again.kinds("restore")
    assert outcome == [False]
    assert "resume" not in kinds


def test_memory_is_got_while_nobody_waits(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    access, touch, hold = leader.core.access, SnapshotMemory.touch, leader.core.access.hold
    happened: list[str] = []

    def touching(copies: SnapshotMemory) -> None:
        happened.append("touch")
        touch(copies)

    def holding(seconds: float) -> bool:
        happened.append("hold")
        return hold(seconds)

    monkeypatch.setattr(SnapshotMemory, "touch", touching)
    monkeypatch.setattr(access, "hold", holding)
    outcome = save(leader)
    order = raw.order("prepare")
    assert order.prepare.memory
    assert happened == []
    raw.answer(order, state="raw")
    written(raw, raw.order("snapshot"), tmp_path)
    wait_until(lambda: outcome, "the checkpoint is there")
    assert (outcome, happened) == ([True], ["touch", "hold"])


def test_memory_is_given_back_where_a_shard_does_not_get_its_own(
    leader: OneShard, raw: RawShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaax.server.parameter_server.coordination.leader.PREPARE", 0.1)
    serve(leader, raw)
    outcome = save(leader)
    assert raw.order("prepare").prepare.memory
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]
    assert not raw.order("prepare").prepare.memory
    assert leader.core.model is not None
    assert leader.core.model.shard._prepared is None


def test_while_a_shard_is_away_nothing_is_copied(
    leader: OneShard, raw: RawShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    raw.go()
    wait_until(lambda: leader.core.access.closed, "shard 0 waits for the other one")
    monkeypatch.setattr(leader.core, "state", lambda: pytest.fail("the state is copied"))
    outcome = save(leader)
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]


def test_a_store_that_stalls_while_it_deletes_keeps_the_shards_from_nothing(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    assert leader.manager is not None
    stalls, goes_on = threading.Event(), threading.Event()

    def stalling() -> None:
        stalls.set()
        assert goes_on.wait(30)
        raise StoreError("no answer")

    monkeypatch.setattr(leader.manager, "_delete_old", stalling)
    outcome = save(leader)
    try:
        written(raw, raw.order("snapshot"), tmp_path)
        assert stalls.wait(30)
        raw.go()
        wait_until(lambda: leader.core.access.closed, "shard 0 waits for the other one")
        assert outcome == []
    finally:
        goes_on.set()
    wait_until(lambda: outcome, "the checkpoint is there")
    assert outcome == [True]


def test_a_shard_that_goes_while_it_writes_leaves_no_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.order("snapshot")
    raw.go()
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]
    assert list(tmp_path.rglob("*.safetensors")) == []
    wait_until(lambda: leader.core.access.closed, "shard 0 waits for the other one")


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_shard_that_goes_when_it_has_written_leaves_no_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    serve(leader, raw)
    assert leader.manager is not None
    assert isinstance(leader.shards, Leader)
    members, store, listed = leader.shards.members, leader.manager.store, threading.Event()
    keys_of = store.list

    with contextlib.ExitStack() as later:

        def going(prefix: str = "") -> list[str]:
            """Shard 0 looks whether all parts are there: they are, and then the other shard goes."""
            keys = keys_of(prefix)
            if prefix and not listed.is_set():
                listed.set()
                assert len(keys) == 2
                before = members.changes
                raw.go()
                wait_until(lambda: members.changes == before + 1, "it has gone")
                if comes_back:  # as another life, which has nothing of what was cut
                    later.enter_context(raw_shard(leader.address, location=str(tmp_path), instance="other"))
                    wait_until(lambda: members.missing() is None, "it is there again")
            return keys

        monkeypatch.setattr(store, "list", going)
        outcome = save(leader)
        written(raw, raw.order("snapshot"), tmp_path)
        wait_until(lambda: outcome, "the checkpoint is given up")
        assert outcome == [False]
        assert listed.is_set()
        assert CheckpointManager(LocalStore(tmp_path)).published() == []
        assert list(tmp_path.rglob("*.safetensors")) == []


def test_a_part_that_cannot_be_written_makes_a_checkpoint_late_and_training_goes_on(
    leader: OneShard, raw: RawShard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    raw.answer(raw.order("snapshot"), failure=pb.FAILURE_STORE, sentence="no space left")
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]
    assert "is late: shard 1 of 2: no space left" in caplog.text
    assert leader.core.status().checkpoint_error == "shard 1 of 2: no space left"
    assert not leader.core.access.closed
    assert CheckpointManager(LocalStore(tmp_path)).published() == []
    # It is tried again, with a cut of its own.
    outcome = save(leader)
    order = raw.order("snapshot")
    written(raw, order, tmp_path)
    wait_until(lambda: outcome, "the checkpoint is there")
    assert outcome == [True]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 1
    assert leader.core.status().checkpoint_error == ""
    # Nothing new: no other one.
    outcome = save(leader)
    raw.answer(raw.order("prepare"), state="raw")  # and nobody is held
    wait_until(lambda: outcome, "nothing is to be saved")
    assert outcome == [True]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 1


def test_what_only_another_shard_has_is_news(leader: OneShard, raw: RawShard, tmp_path: Path) -> None:
    serve(leader, raw)
    outcome = save(leader)
    written(raw, raw.order("snapshot"), tmp_path)
    wait_until(lambda: outcome, "the checkpoint is there")
    # Of a push one part came through, and not shard 0's: nothing is new there.
    outcome = save(leader)
    raw.answer(raw.order("prepare"), state="half a push")
    raw.answer(raw.order("hold"), state="half a push")
    written(raw, raw.order("snapshot"), tmp_path)
    wait_until(lambda: outcome, "another checkpoint is there")
    assert outcome == [True]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 2


def test_a_part_that_shard_0_does_not_see_is_no_part(
    leader: OneShard, raw: RawShard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    outcome = save(leader)
    written(raw, raw.order("snapshot"), tmp_path / "of-another-machine")
    wait_until(lambda: outcome, "the checkpoint is given up")
    assert outcome == [False]
    assert "shard-1 was written to" in caplog.text
    assert "but shard 0 cannot see it there: use a folder that all machines share" in caplog.text
    assert CheckpointManager(LocalStore(tmp_path)).published() == []


def test_the_ledger_of_as_many_workers_as_are_remembered_comes_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = {f"{number:032x}": [10**12 + number, 1, 10**6] for number in range(16_384)}
    leader = OneShard(ShardPosition(0, 2), Models(), tmp_path, "", parameters=8)
    try:
        with raw_shard(leader.address, location=str(tmp_path)) as shard:
            serve(leader, shard)
            outcome = save(leader)
            written(shard, shard.order("snapshot"), tmp_path, ledger)
            wait_until(lambda: outcome, "the checkpoint is there")
            assert outcome == [True], caplog.text
    finally:
        leader.stop()
        leader.ends.close()


def test_a_checkpoint_that_is_damaged_for_one_shard_is_skipped_by_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = OneShard(ShardPosition(0, 2), Models(), tmp_path, "")
    with raw_shard(first.address, location=str(tmp_path)) as shard:
        serve(first, shard)
        for number in (1, 2):
            assert first.core.model is not None
            first.core.model.shard.remove_worker("nobody")
            first.shards._saved = ()  # type: ignore[union-attr]
            assert first.checkpointer is not None
            first.checkpointer._saved_mark = None
            outcome = save(first)
            written(shard, shard.order("snapshot"), tmp_path)
            wait_until(lambda outcome=outcome: outcome, f"checkpoint {number} is there")
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


def test_one_that_wants_to_leave_is_let_go_when_a_checkpoint_holds_what_it_has(
    leader: OneShard, raw: RawShard, tmp_path: Path
) -> None:
    serve(leader, raw)
    raw.say(leaving=pb.Leaving())
    order = raw.order("snapshot")
    assert leader.core.access.closed == "shard 1 of 2 is leaving"
    written(raw, order, tmp_path)
    assert raw.order("end").end.saved
    raw.go()
    wait_until(lambda: "is unavailable" in leader.core.access.closed, "shard 0 waits for it to come back")
    leader.stop(Reason.INTERRUPTED)
    assert leader.ended == (Reason.INTERRUPTED, True)  # nothing was learned since


def test_an_end_while_a_shard_that_was_let_go_is_on_its_way_warns_of_nothing(
    leader: OneShard, raw: RawShard, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serve(leader, raw)
    raw.say(leaving=pb.Leaving())
    written(raw, raw.order("snapshot"), tmp_path)
    assert raw.order("end").end.saved
    leader.shards.stop_updates("the parameter server is ending")  # type: ignore[union-attr]
    outcome = save(leader)
    raw.order("hold")
    raw.go()
    wait_until(lambda: outcome, "there is nothing to be saved")
    assert outcome == [True]
    assert "late" not in caplog.text


def test_the_end_holds_everybody_before_the_last_checkpoint(
    leader: OneShard, raw: RawShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(leader, raw)
    monkeypatch.setattr("relaax.server.parameter_server.coordination.leader.HOLD", 0.0)  # nobody waits to go on
    leader.ends.put(Reason.TERMINATED)
    while not (order := raw.order("hold")).hold.cut:
        raw.answer(order, state="raw")
    assert order.hold.sentence == "the parameter server is ending"
    raw.answer(order, state="raw")
    order = raw.order("snapshot")
    written(raw, order, tmp_path)
    assert raw.order("end").end.saved
    raw.go()
    assert leader.join() == (Reason.TERMINATED, True)
