"""Shard 0: it brings all shards to one state, and makes one checkpoint of all of them."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import grpc

from relaax.checkpoint import (
    Arrays,
    Checkpoint,
    CheckpointManager,
    Conflict,
    Lease,
    LeaseLost,
    NoUsableCheckpoint,
    Store,
    StoreError,
)
from relaax.checkpoint.manifest import part_key
from relaax.server.checkpoints.checkpointing import Checkpointer, CheckpointLate, ModelState, Saved
from relaax.server.checkpoints.spool import Spool
from relaax.server.command.termination import Reason
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc
from relaax.server.parameter_server.coordination.coordinator import Coordinator, Fingerprints, may_save, roll_back
from relaax.server.parameter_server.coordination.members import HOLD, PARAMETERS, Member, Members, ShardLost
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ModelRefused
from relaax.server.parameter_server.shard.persistence import parts_for

_log = logging.getLogger(__name__)

PREPARE = 10.0
"""Maximum seconds for a shard to allocate the memory of its snapshot."""
LAST_HOLD = 30.0
"""Maximum seconds for a shard to stop updates for the last checkpoint. No worker waits for it."""


class Barrier:
    """A barrier that cuts the states of all shards at a moment without updates. For one thread at a time."""

    def __init__(self, core: ParameterServerCore, members: Members) -> None:
        self._core = core
        self._members = members
        self.number = 0
        """Number of the last attempted cut."""

    def has_changed(self, saved: tuple[object, ...]) -> bool:
        """Return whether any shard has changed since the states `saved`. Updates continue. Raises ShardLost."""
        mark = self._core.mark()
        if mark is None or (mark,) != saved[:1]:
            return True
        answers = self._members.send_orders(PREPARE, prepare=pb.Prepare())
        return (mark, *(answer.state for answer in answers)) != saved

    def prepare(self) -> None:
        """Make all shards allocate memory for their snapshots, until the checkpoint ends. Raises ShardLost."""
        try:
            self._members.send_orders(PREPARE, prepare=pb.Prepare(memory=True))
        except ShardLost:
            for member in self._members.all():
                member.send_order(prepare=pb.Prepare())
            raise
        self._core.prepare()

    def cut(self, closing: str) -> tuple[ModelState | None, list[pb.Answer]]:
        """Cut the states of all shards at one moment. Return shard 0's state and the other shards' answers.

        `closing`: why updates stop permanently; empty if they resume. Raises ShardLost and CheckpointLate.
        """
        self.number += 1
        members = self._members.all()
        hold = pb.Hold(cut=self.number, sentence=closing)
        if closing:
            return self._core.state(), self._members.send_orders(LAST_HOLD, members, hold=hold)
        access = self._core.access
        unbroken = access.hold(HOLD)
        try:
            answers = self._members.send_orders(HOLD, members, hold=hold)
            state = self._core.state()
            resumed = self._members.send_orders(HOLD, members, resume=pb.Resume())
        except ShardLost:
            for member in members:  # a shard that joined meanwhile stays closed until all return to a checkpoint
                member.send_order(resume=pb.Resume())
            raise
        finally:
            unbroken &= access.release()
        if not unbroken or any(answer.failure for answer in resumed):
            raise CheckpointLate("the barrier between the shards took too long")
        return state, answers


ANSWER = 600.0
"""Maximum seconds for a shard to read or write its part."""
_CHECK_SECONDS = 1.0
_RETRY_SECONDS = 5.0
_END_SECONDS = 5.0


class _Cut(NamedTuple):
    """A cut, of which each shard keeps a snapshot. `states`: the state marks of the shards."""

    number: int = 0
    states: tuple[object, ...] = ()


class Leader(Coordinator):
    """The coordinator of shard 0. Workers are served only while all shards have joined.

    When a missing shard joins again, all shards return to the last published checkpoint, under a new incarnation. A
    `Checkpointer` makes checkpoints of all shards by `cut` and `save`. For `fingerprints` see `Fingerprints`.
    """

    message_parameters = PARAMETERS

    def __init__(
        self,
        core: ParameterServerCore,
        ours: pb.Introduction,
        fingerprints: Fingerprints,
        manager: CheckpointManager | None,
    ) -> None:
        super().__init__()
        self.threads = 2 * core.position.count  # the stream of each shard occupies a thread
        self._changed = threading.Event()
        self.members = Members(ours, self._changed.set)
        self._core = core
        self._fingerprints = fingerprints
        self._manager = manager
        # `members.changes` when all shards began to serve; None while they do not serve.
        self._served: int | None = None
        self._last_logged: tuple[str, int] | None = None
        self._closing = ""
        self._barrier = Barrier(core, self.members)
        self._cut = _Cut()
        mark = core.mark()
        self._saved: tuple[object, ...] = () if mark is None else (mark,)  # state marks in the last checkpoint
        self._lock = threading.RLock()  # held while all shards start or stop serving, or a cut is made
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True)
        core.access.close(self.members.missing() or "the shards are about to start")

    @property
    def store(self) -> Store:
        assert self._manager is not None, "without a store, no checkpoints are requested"
        return self._manager.store

    @property
    def lease(self) -> Lease | None:
        return self._manager.lease if self._manager else None

    def start(self) -> None:
        self._thread.start()

    def add_to_server(self, server: grpc.Server) -> None:
        pb_grpc.add_CoordinationServiceServicer_to_server(self.members, server)

    def checkpointer(self, create: Callable[..., Checkpointer], spool: Spool | None) -> Checkpointer | None:
        return create(self, self.cut) if self._manager else None

    def stop(self, reason: Reason, save: Callable[[], bool], stop_calls: Callable[[], None]) -> bool:
        self.stop_updates("the parameter server is ending")
        safe = may_save(reason) and save()
        if reason is not Reason.SUPERSEDED:  # otherwise the shards belong to another server and wait for it
            self.end(safe)
        stop_calls()
        return safe

    def stop_updates(self, sentence: str) -> None:
        """Stop updates on all shards, so that the last checkpoint contains all updates acknowledged so far."""
        with self._lock:
            self._closing = sentence
            self._close(sentence)

    def end(self, saved: bool) -> None:
        self._stop.set()
        self._changed.set()
        members = self.members.all()
        for member in members:
            member.send_order(end=pb.End(saved=saved))
        deadline = time.monotonic() + _END_SECONDS
        for member in members:
            member.ended.wait(max(0.0, deadline - time.monotonic()))

    def cut(self) -> ModelState | None:
        """Return the state of all shards at one moment; None if it is in the last checkpoint or there is no model.

        Pushes wait for two round trips between the shards. Raises CheckpointLate if no cut is possible now.
        """
        why = "the shards are returning to their last checkpoint"
        try:
            if self._all_serve and not self._closing:  # without the lock
                if not self._barrier.has_changed(self._saved):
                    return None
                self._barrier.prepare()
            with self._lock:
                if self._all_serve:
                    state, answers = self._barrier.cut(self._closing)
                    if self._all_serve:
                        return self._changed_state(state, answers)
        except ShardLost as lost:
            why = str(lost)
        finally:
            self._core.free_prepared()
        own = self._core.mark()
        if own is None or self._saved[:1] == (own,):
            return None  # no update since
        raise CheckpointLate(self.members.missing() or why)

    def _changed_state(self, state: ModelState | None, answers: list[pb.Answer]) -> ModelState | None:
        """Return the state that was taken, unless the last checkpoint contains it."""
        if state is None or any(answer.failure == pb.FAILURE_NO_MODEL for answer in answers):
            return None  # workers have not registered with all shards, so there are no pushes
        states = (state.mark, *(answer.state for answer in answers))
        if states == self._saved:
            return None
        self._cut = _Cut(self._barrier.number, states)
        return replace(state, mark=states)

    @property
    def _all_serve(self) -> bool:
        return self._served == self.members.changes

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Write and publish the last cut. Each shard writes its own part.

        Raises StoreError, LeaseLost, and CheckpointLate if a shard does not answer.
        """
        assert self._manager is not None
        manager, cut, served, own = self._manager, self._cut, self._served, self._core.position.part
        checkpoint_id = manager.begin_checkpoint(global_step)
        members = self.members.all()
        try:
            order = pb.Snapshot(cut=cut.number, checkpoint=checkpoint_id)
            asked = [member.send_order(snapshot=order) for member in members]
            described: dict[str, Mapping[str, Any]] = {own: manager.write_part(checkpoint_id, own, parts[own])}
            shards = list(manifest["shards"])
            for member, future in zip(members, asked, strict=True):
                answer = future.result(ANSWER)
                if answer.failure:
                    raise StoreError(f"{member}: {answer.sentence}")
                shards.append(json.loads(answer.shard))
                described[shards[-1]["part"]] = json.loads(answer.part)
            self._check_parts_visible(checkpoint_id, described)
            with self._lock:
                if served is None or not served == self._served == self.members.changes:
                    raise ShardLost("a shard disconnected before the checkpoint was published")
                full = manager.publish(checkpoint_id, global_step, described, {**manifest, "shards": shards})
                self._saved = cut.states
        except Conflict:
            raise  # another server has published this checkpoint, so keep its files
        except (ShardLost, futures.TimeoutError, LeaseLost, StoreError) as error:
            manager.abandon(checkpoint_id, [own, *(f"shard-{member.shard}" for member in members)])
            if isinstance(error, (LeaseLost, StoreError)):
                raise
            raise CheckpointLate(str(error) or "a shard did not write its part in time") from None
        manager.delete_old()  # without the lock: a store that stalls must not block the shards
        return Checkpoint(checkpoint_id, parts, full)

    def _check_parts_visible(self, checkpoint_id: str, parts: Mapping[str, Any]) -> None:
        """Check that shard 0 can see every part: a folder may differ between machines. Raises StoreError."""
        keys = set(self.store.list(f"{checkpoint_id}/"))
        for part in sorted(parts):
            if part_key(checkpoint_id, part) not in keys:
                raise StoreError(
                    f"{part} was written to {self.store.location}, but shard 0 cannot see it there: use a folder that "
                    "all machines share"
                )

    def _run(self) -> None:
        while not self._stop.is_set():
            self._changed.wait(_CHECK_SECONDS)
            self._changed.clear()
            try:
                for member in self.members.pop_leaving():
                    self._release(member)
                self._synchronize()
            except ShardLost:
                continue  # a lost shard sets `_changed`; a slow one is asked again
            except NoUsableCheckpoint as error:
                self.refusal = str(error)
                self.on_refused()
                return
            except (StoreError, ModelRefused) as error:
                _log.error("the shards cannot return to their last checkpoint, retrying: %s", error)
                self._stop.wait(_RETRY_SECONDS)
            except Exception:  # a bug in one attempt must not end coordination
                _log.exception("failed to synchronize the shards")

    def _synchronize(self) -> None:
        """Ensure that either all shards serve the same incarnation of the model, or no shard serves."""
        with self._lock:
            changes = self.members.changes
            if self._closing or self._served == changes:
                return
            missing = self.members.missing()
            sentence = missing or "the shards are returning to their last checkpoint"
            if self._last_logged != (sentence, changes):
                _log.log(logging.WARNING if missing else logging.INFO, "%s", sentence)
                self._last_logged = sentence, changes
                self._close(sentence)
        if not missing:
            self._restore(changes)

    def _close(self, sentence: str) -> None:
        """Stop serving on all shards. While `_closing` is set, a last checkpoint can still be cut."""
        if not self._closing:
            self._served = None
        self.on_serving(False)
        self._core.access.close(sentence)
        for member in self.members.all():
            member.send_order(hold=pb.Hold(sentence=sentence))

    def _restore(self, changes: int) -> None:
        """Return all shards to the newest checkpoint that is valid on every shard.

        Raises ShardLost, StoreError (including NoUsableCheckpoint) and ModelRefused.
        """
        core = self._core
        while True:
            checkpoint = (
                self._manager.restore(partial(parts_for, position=core.position), self._roll_back)
                if self._manager
                else None
            )
            checkpoint_id = checkpoint.checkpoint_id if checkpoint else ""
            if checkpoint is None:
                self._roll_back(None)
            incarnation = core.incarnation
            answers = self.members.send_orders(
                ANSWER, restore=pb.Restore(incarnation=incarnation, checkpoint=checkpoint_id)
            )
            damage = next((answer for answer in answers if answer.failure == pb.FAILURE_DAMAGED), None)
            if damage is None:
                break
            _log.error("all shards skip the damaged checkpoint %s: %s", checkpoint_id, damage.sentence)
            assert self._manager is not None
            self._manager.mark_damaged(checkpoint_id, damage.sentence)
        for answer in answers:
            if answer.failure:
                raise StoreError(answer.sentence)
        with self._lock:
            if self._closing or self.members.changes != changes:
                return
            mark = core.mark()
            self._saved = () if mark is None else (mark, *(answer.state for answer in answers))
            if checkpoint is not None:
                manifest, where = checkpoint.manifest, f"{self.store.location}/{checkpoint_id}"
                core.checkpoint_saved(Saved(where, manifest["global_step"], manifest["time"]))
            self._served, self._last_logged = changes, None
            core.access.open()
            for member in self.members.all():
                member.send_order(resume=pb.Resume())
            self.on_serving(True)
        origin = f"checkpoint {checkpoint_id}" if checkpoint_id else "no checkpoint"
        _log.info(
            "all %d shards have joined and serve, at global step %d, from %s",
            core.position.count,
            core.global_step,
            origin,
        )

    def _roll_back(self, checkpoint: Checkpoint | None) -> None:
        """Return shard 0 to a checkpoint, under a higher incarnation than before. Raises ModelRefused and Damaged."""
        earlier = max(self._core.incarnation, checkpoint.manifest.get("incarnation", 0) if checkpoint else 0)
        incarnation = max(time.time_ns() // 1_000_000, earlier + 1)
        roll_back(self._core, checkpoint, self._fingerprints, incarnation)

    def _release(self, member: Member) -> None:
        """Release a shard that must end, after a checkpoint that contains its state."""
        sentence = f"{member} is leaving"
        _log.info("%s", sentence)
        with self._lock:
            if not self._closing:
                self._closing = sentence
                self._close(sentence)
        saved = self.save_now()
        member.send_order(end=pb.End(saved=saved))
        if not member.ended.wait(_END_SECONDS):
            member.disconnect()
        with self._lock:
            if self._closing == sentence:
                self._closing = ""
                self._served = None
