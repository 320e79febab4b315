"""A shard other than shard 0: it executes shard 0's orders, and does not serve workers while shard 0 is unavailable."""

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
"""Seconds for which a shard retries while its index is taken. The detection of a vanished peer takes less time."""
LEAVING = 30.0
"""Seconds for which a shard that must end waits for the checkpoint that contains its state."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNIMPLEMENTED)


class Follower(Coordinator):
    """A connection to shard 0, with retries. A thread executes its orders.

    `ends` receives a reason when the process must end. If shard 0 refuses this shard, `refusal` is the reason.
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
        self._unavailable = f"shard 0 at {first.address} is unavailable: waiting for it"
        self._requests: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self._joined = False
        self._leaving = False
        self._restoring = False  # whether it is not serving because of an order to return to a checkpoint
        self._unavailable_logged = False
        self._kept: tuple[int, ModelState] | None = None
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._saved = False
        self._thread = threading.Thread(target=self._run, name="coordination", daemon=True)
        core.access.close(self._unavailable)

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: Reason, save: Callable[[], bool], stop_calls: Callable[[], None]) -> bool:
        safe = self.request_release()
        stop_calls()
        return safe

    def request_release(self, seconds: float = LEAVING) -> bool:
        """Ask shard 0 to save a checkpoint and release this shard in `seconds`. Return whether the state is safe."""
        if self._ended.is_set():
            return self._saved
        self._leaving = True
        if not self._joined or self._restoring:
            return True  # its state is a checkpoint's, or will be rolled back to one when shard 0 is available
        self._requests.put(pb.JoinRequest(leaving=pb.Leaving()))
        if not self._ended.wait(seconds):
            _log.error("shard 0 did not release this shard within %g s", seconds)
        return self._saved

    def _run(self) -> None:
        pauses, refused_since = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE), None
        with open_channel(self._first, message_bytes(PARAMETERS)) as channel:
            stub = pb_grpc.CoordinationServiceStub(channel)
            while not self._ended.is_set():
                begun = time.monotonic()
                sentence = self._execute_orders(stub)
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

    def _execute_orders(self, stub: pb_grpc.CoordinationServiceStub) -> str | None:
        """Execute orders until the stream ends. Return the reason of a refusal that may be temporary, or None."""
        requests: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self._requests = requests
        requests.put(pb.JoinRequest(introduction=self._own))
        stream = stub.Join(iter(requests.get, None))
        try:
            for order in stream:
                if not self._joined:
                    self._joined = True
                    self._unavailable_logged = False
                    _log.info("connected to shard 0 at %s", self._first.address)
                if order.HasField("end"):
                    self._execute_end(order.end)
                    break
                self._execute(order)
        except grpc.RpcError as error:
            return self._handle_error(error)
        except Exception:  # such as MemoryError; shard 0 would wait forever for a shard without this thread
            _log.exception("failed to execute an order of shard 0")
        finally:
            requests.put(None)
            stream.cancel()
            self._disconnected()
        return None

    def _handle_error(self, error: grpc.RpcError) -> str | None:
        unauthenticated = authentication_error(error, self._first)
        if unauthenticated is not None:
            self._end(str(unauthenticated))
        elif error.code() in _REFUSALS:
            self._end(error.details() or str(error.code()))
        elif error.code() is grpc.StatusCode.ALREADY_EXISTS:
            _log.warning("shard 0 at %s refuses this shard: %s; retrying", self._first.address, error.details())
            return error.details()
        else:
            self._log_unavailable(error.details() or error.code().name)
        return None

    def _log_unavailable(self, why: str) -> None:
        """Log once, until the next connection, that shard 0 is unavailable."""
        if not (self._unavailable_logged or self._leaving or self._ended.is_set()):
            self._unavailable_logged = True
            _log.warning("%s (%s)", self._unavailable, why)

    def _disconnected(self) -> None:
        self.on_serving(False)
        if self._joined:
            self._log_unavailable("its stream has ended")
        self._joined = False
        self._kept = None
        self._core.free_prepared()
        self._core.access.close(self._unavailable)

    def _execute(self, order: pb.JoinResponse) -> None:
        what = order.WhichOneof("what")
        answer = pb.Answer(order=order.order)
        if what == "snapshot":  # in a thread, because it is slow and shard 0 may send other orders meanwhile
            kept = None
            if self._kept and self._kept[0] == order.snapshot.cut:
                kept, self._kept = self._kept, None  # as large as the shard, so freed once it is written
            threading.Thread(target=self._write, args=(order, kept, self._requests), daemon=True).start()
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
            answer.failure, answer.sentence = pb.FAILURE_BROKEN, "the shard does not support this order"
        self._requests.put(pb.JoinRequest(answer=answer))

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
                    raise StoreError("the shard has no checkpoint location")
                checkpoint = self._manager.load(order.checkpoint, partial(parts_for, position=core.position))
            roll_back(core, checkpoint, self._fingerprints, order.incarnation)
        except Damaged as damage:
            answer.failure, answer.sentence = pb.FAILURE_DAMAGED, f"{core.position}: {damage}"
        except (StoreError, ModelRefused) as error:
            answer.failure, answer.sentence = pb.FAILURE_STORE, f"{core.position}: {error}"
            if isinstance(error, ModelRefused):
                self._end(str(error))
        else:
            _log.info(
                "this shard returned to %s, incarnation %d",
                order.checkpoint or "the start of training",
                order.incarnation,
            )
            self._mark(answer)

    def _mark(self, answer: pb.Answer) -> None:
        mark = self._core.mark()
        answer.state = "" if mark is None else repr(mark)

    def _prepare(self, order: pb.Prepare, answer: pb.Answer) -> None:
        self._kept = None  # drop a snapshot that shard 0 has not used
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
        if order.cut:  # without a cut, keep the last snapshot, because shard 0 may still order its write
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
            self._kept = None  # this shard may have applied updates before all snapshots were taken
            answer.failure = pb.FAILURE_BROKEN
            answer.sentence = f"{self._core.position}: the hold expired before the order to resume"

    def _write(
        self,
        order: pb.JoinResponse,
        kept: tuple[int, ModelState] | None,
        requests: queue.SimpleQueue[pb.JoinRequest | None],
    ) -> None:
        position, answer = self._core.position, pb.Answer(order=order.order)
        try:
            if kept is None or self._manager is None:
                answer.failure, answer.sentence = pb.FAILURE_BROKEN, f"{position} has no snapshot of this cut"
            else:
                with self._writing:  # one at a time, so that the latest snapshot is written last
                    state = kept[1]
                    part = self._manager.write_part(
                        order.snapshot.checkpoint, position.part, state.parts[position.part]
                    )
                answer.part, answer.shard = json.dumps(part), json.dumps(state.manifest["shards"][0])
        except StoreError as error:
            answer.failure, answer.sentence = pb.FAILURE_STORE, str(error)
        except Exception as error:  # after a bug here, shard 0 must get an answer
            _log.exception("failed to write this shard's part of the checkpoint")
            answer.failure, answer.sentence = pb.FAILURE_STORE, repr(error)
        requests.put(pb.JoinRequest(answer=answer))

    def _execute_end(self, order: pb.End) -> None:
        self._saved = order.saved
        self._core.access.close("the parameter server is ending")
        self._ended.set()
        if not self._leaving:
            self._ends.put(Reason.RELEASED)

    def _end(self, sentence: str) -> None:
        self._ended.set()
        self.refusal = sentence
        self._ends.put(Reason.REFUSED)
