"""A shard other than shard 0: it obeys shard 0, and serves no worker while shard 0 is away."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

import grpc

from relaax.backoff import Pauses
from relaax.checkpoint import CheckpointManager, Damaged, StoreError
from relaax.parameters.calls import authentication_error
from relaax.server.checkpoints.checkpointing import ModelState
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc
from relaax.server.parameter_server.coordination.coordinator import Coordinator, Fingerprints, roll_back
from relaax.server.parameter_server.coordination.members import HOLD, PARAMETERS
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ModelRefused
from relaax.server.parameter_server.shard.persistence import parts_for
from relaax.transport.channel import Target, open_channel
from relaax.transport.grpc_options import message_bytes

_log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds that a shard retries while its index is taken: longer than the detection of a vanished peer takes."""
LEAVING = 30.0
"""Seconds that a shard waits, when it must end, for the checkpoint that contains its state."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)


class Follower(Coordinator):
    """A connection to shard 0, with retries, whose orders a thread obeys. `ends` receives a reason when the process
    must end; `refusal` says why, if shard 0 refuses it.
    """

    def __init__(
        self,
        core: ParameterServerCore,
        own: pb.Introduction,
        first: Target,
        fingerprints: Fingerprints,
        manager: CheckpointManager | None,
        ends: EndRequests,
    ) -> None:
        super().__init__()
        self._core = core
        self._own = own
        self._first = first
        self._fingerprints = fingerprints
        self._manager = manager
        self._ends = ends
        self._away = f"shard 0 at {first.address} is away: waiting for it"
        self._says: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self._joined = False
        self._leaving = False
        self._restoring = False  # not serving since the order to return to a checkpoint
        self._said_away = False
        self._kept: tuple[int, ModelState] | None = None
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._saved = False
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True)
        core.access.close(self._away)

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: Reason, save: Callable[[], bool], stop_calls: Callable[[], None]) -> bool:
        safe = self.leave()
        stop_calls()
        return safe

    def leave(self, seconds: float = LEAVING) -> bool:
        """Ask shard 0 for a checkpoint and release, wait for at most `seconds`, and return whether nothing is lost."""
        if self._ended.is_set():
            return self._saved
        self._leaving = True
        if not self._joined or self._restoring:
            return True  # its state will be rolled back when shard 0 returns, or is that of a checkpoint
        self._says.put(pb.JoinRequest(leaving=pb.Leaving()))
        if not self._ended.wait(seconds):
            _log.error("shard 0 did not answer in %g s", seconds)
        return self._saved

    def _run(self) -> None:
        pauses, refused_since = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE), None
        with open_channel(self._first, message_bytes(PARAMETERS)) as channel:
            stub = pb_grpc.CoordinationServiceStub(channel)
            while not self._ended.is_set():
                begun = time.monotonic()
                sentence = self._follow(stub)
                if self._ended.is_set() or self._leaving:
                    break
                if sentence is None:
                    refused_since = None
                else:
                    refused_since = refused_since or begun
                    if begun - refused_since > PATIENCE:
                        self._end(sentence)
                        return
                if time.monotonic() - begun > _LONGEST_PAUSE:
                    pauses.reset()
                self._ended.wait(pauses.next())
        self._ended.set()

    def _follow(self, stub: pb_grpc.CoordinationServiceStub) -> str | None:
        """Obey until the stream ends. Returns the reason for a refusal that may be temporary, or None."""
        says: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self._says = says
        says.put(pb.JoinRequest(introduction=self._own))
        stream = stub.Join(iter(says.get, None))
        try:
            for order in stream:
                if not self._joined:
                    self._joined = True
                    self._said_away = False
                    _log.info("connected to shard 0 at %s", self._first.address)
                if order.HasField("end"):
                    self._obey_end(order.end)
                    break
                self._obey(order)
        except grpc.RpcError as error:
            return self._broken(error)
        finally:
            says.put(None)
            stream.cancel()
            self._lose()
        return None

    def _broken(self, error: grpc.RpcError) -> str | None:
        unauthenticated = authentication_error(error, self._first)
        if unauthenticated is not None:
            self._end(str(unauthenticated))
        elif error.code() in _REFUSALS:
            self._end(error.details() or str(error.code()))
        elif error.code() is grpc.StatusCode.ALREADY_EXISTS:
            _log.warning("shard 0 at %s: %s; retrying", self._first.address, error.details())
            return error.details()
        else:
            self._say_away(error.details() or error.code().name)
        return None

    def _say_away(self, why: str) -> None:
        """Log once that shard 0 is away, until it returns."""
        if not (self._said_away or self._leaving or self._ended.is_set()):
            self._said_away = True
            _log.warning("%s (%s)", self._away, why)

    def _lose(self) -> None:
        self.on_serving(False)
        if self._joined:
            self._say_away("its stream has ended")
        self._joined = False
        self._kept = None
        self._core.free_prepared()
        self._core.access.close(self._away)

    def _obey(self, order: pb.JoinResponse) -> None:
        what = order.WhichOneof("what")
        answer = pb.Answer(order=order.order)
        if what == "snapshot":  # slow, and shard 0 may send other orders in between
            kept = None
            if self._kept and self._kept[0] == order.snapshot.cut:
                kept, self._kept = self._kept, None  # as large as the shard: freed once written
            threading.Thread(target=self._write, args=(order, kept, self._says), daemon=True).start()
            return
        if what == "restore":
            self._restore(order.restore, answer)
        elif what == "hold":
            self._hold(order.hold, answer)
        elif what == "resume":
            self._resume(answer)
        elif what == "prepare":
            self._prepare(order.prepare, answer)
        else:
            answer.failure, answer.sentence = pb.FAILURE_BROKEN, "the shard does not know this order"
        self._says.put(pb.JoinRequest(answer=answer))

    def _restore(self, order: pb.Restore, answer: pb.Answer) -> None:
        core = self._core
        core.access.close("the shards are returning to their last checkpoint")
        self.on_serving(False)
        self._restoring = True
        self._kept = None
        try:
            checkpoint = None
            if order.checkpoint:
                if self._manager is None:
                    raise StoreError("it keeps no checkpoints")
                checkpoint = self._manager.load(order.checkpoint, partial(parts_for, position=core.position))
            roll_back(core, checkpoint, self._fingerprints, order.incarnation)
        except Damaged as damage:
            answer.failure, answer.sentence = pb.FAILURE_DAMAGED, f"{core.position}: {damage}"
        except (StoreError, ModelRefused) as error:
            answer.failure, answer.sentence = pb.FAILURE_STORE, f"{core.position}: {error}"
            if isinstance(error, ModelRefused):
                self._end(str(error))
        else:
            _log.info("at %s, incarnation %d", order.checkpoint or "the beginning", order.incarnation)
            self._mark(answer)

    def _mark(self, answer: pb.Answer) -> None:
        mark = self._core.mark()
        answer.state = "" if mark is None else repr(mark)

    def _prepare(self, order: pb.Prepare, answer: pb.Answer) -> None:
        self._kept = None  # a snapshot that shard 0 did not use
        if order.memory:
            self._core.prepare()
        else:
            self._core.free_prepared()
        self._mark(answer)

    def _hold(self, order: pb.Hold, answer: pb.Answer) -> None:
        access = self._core.access
        if order.sentence:
            self.on_serving(False)
            access.close(order.sentence)
        elif not access.hold(HOLD):
            answer.failure, answer.sentence = pb.FAILURE_BROKEN, f"{self._core.position}: an update took too long"
        if order.cut:  # without a cut, keep the last snapshot: shard 0 may still order it
            self._kept = None
        if order.cut and not answer.failure and (state := self._core.state()) is not None:
            answer.state = repr(state.mark)
            self._kept = order.cut, state
        else:
            self._core.free_prepared()
            self._mark(answer)
        if not answer.state:
            answer.failure, answer.sentence = pb.FAILURE_NO_MODEL, f"{self._core.position} has no model yet"

    def _resume(self, answer: pb.Answer) -> None:
        access = self._core.access
        if access.closed:
            self._restoring = False
            access.open()
            self.on_serving(True)
        elif not access.release():
            self._kept = None  # it was not taken while all shards held
            answer.failure, answer.sentence = pb.FAILURE_BROKEN, f"{self._core.position}: the hold had ended before"

    def _write(
        self,
        order: pb.JoinResponse,
        kept: tuple[int, ModelState] | None,
        says: queue.SimpleQueue[pb.JoinRequest | None],
    ) -> None:
        position, answer = self._core.position, pb.Answer(order=order.order)
        try:
            if kept is None or self._manager is None:
                answer.failure, answer.sentence = pb.FAILURE_BROKEN, f"{position} has no snapshot of this cut"
            else:
                with self._writing:  # one at a time: the snapshot ordered last is written last
                    state = kept[1]
                    part = self._manager.write_part(
                        order.snapshot.checkpoint, position.part, state.parts[position.part]
                    )
                answer.part, answer.shard = json.dumps(part), json.dumps(state.manifest["shards"][0])
        except StoreError as error:
            answer.failure, answer.sentence = pb.FAILURE_STORE, str(error)
        except Exception as error:  # a bug here must not leave shard 0 waiting
            _log.exception("the part could not be written")
            answer.failure, answer.sentence = pb.FAILURE_STORE, repr(error)
        says.put(pb.JoinRequest(answer=answer))

    def _obey_end(self, order: pb.End) -> None:
        self._saved = order.saved
        self._core.access.close("the parameter server is ending")
        self._ended.set()
        if not self._leaving:
            self._ends.put(Reason.RELEASED)

    def _end(self, sentence: str) -> None:
        self._ended.set()
        self.refusal = sentence
        self._ends.put(Reason.REFUSED)
