"""A worker's end of the connection to one shard."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any

import grpc
import numpy as np

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Call
from relaax.parameters.channel import Target, open_channel
from relaax.parameters.grpc_options import message_bytes
from relaax.parameters.interfaces import FlatVector, ParameterServerError
from relaax.parameters.local_socket import NoSharedMemory, Trouble
from relaax.parameters.precision import Narrower, widened
from relaax.parameters.shared_memory import Method, SharedMemory
from relaax.parameters.wire import Carrier, CarrierStub

_log = logging.getLogger(__name__)
_TRY_AGAIN_SECONDS = 30.0


def shard_range(parameters: int, shard: int, shards: int) -> tuple[int, int]:
    """First element of a vector of so many that the shard owns, and one past its last."""
    return shard * parameters // shards, (shard + 1) * parameters // shards


class ShardClient:
    """One shard: its channel, its range `[start, end)` of the flat vector, the version that the worker has of it, and
    the number of the worker's last push. Shard 0 counts steps and gathers metrics for all of them.

    `precision`: of vectors on the wire. In memory that is shared they are float32.
    """

    def __init__(self, target: Target, shard: int = 0, precision: pb.Precision = pb.PRECISION_UNSPECIFIED) -> None:
        self.target = target
        self.shard = shard
        self._wire_precision = precision
        self._narrowed = Narrower("numbers of a gradient")
        self.start = self.end = 0
        self.version: int | None = None
        self._push_id = 0
        self._memory: SharedMemory | None = None
        self._offered: tuple[pb.SharedMemoryOffer, str] | None = None
        self._unheard = b""  # the socket where nobody listened last time
        self._next_try = 0.0
        self._channel: grpc.Channel | None = None
        self._stub = self._open()

    @property
    def address(self) -> str:
        """HOST:PORT of the shard."""
        return self.target.address

    @property
    def size(self) -> int:
        """The number of elements that the shard owns."""
        return self.end - self.start

    def register(self, request: pb.RegisterRequest) -> Call:
        """Register the worker: its pushes are counted from 1, and it has no parameters."""
        self._leave_memory()
        self._offered = None
        self._push_id = 0
        self.version = None
        return Call(self._stub.Register, request, self.target)

    def check_place(self, response: pb.RegisterResponse, shards: int) -> None:
        """Check that it is the shard that the order of addresses says, with its range. Raises ParameterServerError."""
        if response.shards != shards:
            raise ParameterServerError(
                f"parameter server {self.address} is one of {response.shards} shards, and {shards} "
                f"{'address was' if shards == 1 else 'addresses were'} given: name them all, shard 0 first"
            )
        if response.shard != self.shard:
            raise ParameterServerError(
                f"parameter server {self.address} is shard {response.shard}, and it was named where shard {self.shard} "
                "belongs: name them in their order, shard 0 first"
            )
        if (response.range_start, response.range_end) != shard_range(response.parameters, self.shard, shards):
            raise ParameterServerError(
                f"parameter server {self.address} holds the elements from {response.range_start} to "
                f"{response.range_end} of {response.parameters}, which shard {self.shard} of {shards} does not"
            )

    def take_range(self, response: pb.RegisterResponse) -> None:
        """Set the range that the shard owns."""
        size = self.size
        self.start, self.end = response.range_start, response.range_end
        if self.size != size:
            self._stub = self._open()

    def share_memory(self, response: pb.RegisterResponse, worker_id: str) -> None:
        """Push and pull through memory from now on, while that works. Raises NoSharedMemory if it does not yet.

        A shard may end after it has made its offer. One that makes the same offer again is there, and not of this host.
        """
        if not response.HasField("shared_memory"):
            raise NoSharedMemory("it offers none", Trouble.LASTING)
        self._offered = response.shared_memory, worker_id
        try:
            self.share_again()
        except NoSharedMemory as why:
            if why.trouble is Trouble.UNHEARD:
                before, self._unheard = self._unheard, response.shared_memory.socket
                if before == self._unheard:
                    raise NoSharedMemory(str(why), Trouble.LASTING) from None
            raise

    def share_again(self) -> None:
        """Push and pull through memory as the shard offered it. Raises NoSharedMemory."""
        assert self._offered is not None, "there was an offer"
        self._leave_memory()
        self._next_try = time.monotonic() + _TRY_AGAIN_SECONDS
        self._memory = SharedMemory(*self._offered, self.size)

    @property
    def memory(self) -> SharedMemory | None:
        """The connection through memory, if there is one."""
        return self._memory

    def push(self, worker_id: str, incarnation: int, common: pb.PushRequest, gradient: FlatVector | None) -> Call:
        """Return the shard's part of a push, under a number of its own."""
        self._try_memory_again()
        self._push_id += 1
        request = pb.PushRequest(
            worker_id=worker_id,
            incarnation=incarnation,
            push_id=self._push_id,
            base_version=self.version or 0,
            global_step=common.global_step,
            want_parameters=common.want_parameters,
            withheld=common.withheld,
            applied=common.applied,
            precision=self._precision,
            have_version=self.version,
            target_generation=common.target_generation,
        )
        if self.shard == 0:
            request.env_steps = common.env_steps
            request.report.CopyFrom(common.report)
            request.statistics.extend(common.statistics)
        part: Any = b""
        if gradient is not None:
            part = np.ascontiguousarray(gradient[self.start : self.end], "<f4")
            part = self._narrowed(part, request.precision)
        return Call(self._method(self._stub.Push), Carrier(request, part), self.target)

    def pull(self, asker: pb.PullRequest, have_version: int | None) -> Call:
        """Ask for the shard's range of the vector that `asker` names, unless the worker has this version of it.

        `asker` says as well who asks, and which generation of the target network it has heard of.
        """
        self._try_memory_again()
        request = pb.PullRequest(have_version=have_version, precision=self._precision)
        request.MergeFrom(asker)
        return Call(self._method(self._stub.Pull), request, self.target)

    def report(self, request: pb.ReportRequest) -> Call:
        """Send metrics without a push."""
        return Call(self._stub.Report, request, self.target)

    def received(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """Return the parameters of the shard's range, as `vector` does; the worker has their version now."""
        vector = self.vector(response)
        self.version = response.message.version
        return vector

    def vector(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """Return the vector of the shard's range: read-only float32 [size], a view of the response if it holds float32.

        Raises ParameterServerError if its numbers are too many or too few.
        """
        try:
            vector = widened(response.data, response.message.precision)
        except ValueError as error:
            raise ParameterServerError(f"parameter server {self.address}: {error}") from None
        if len(vector) != self.size:
            raise ParameterServerError(
                f"parameter server {self.address} sent {len(vector)} numbers where {self.size} are its"
            )
        return vector

    def leave(self, request: pb.LeaveRequest, timeout: float) -> Any:
        """Say goodbye, without waiting: the answer is a gRPC future, or None if the channel is closed."""
        with contextlib.suppress(ValueError):
            return self._stub.Leave.future(request, timeout=timeout)
        return None

    def close(self) -> None:
        """Close the channel and the connection through memory."""
        self._leave_memory()
        self._close_channel()

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> CarrierStub:
        """Return a stub on a new channel that takes messages as long as the range needs, and no longer ones."""
        self._close_channel()
        self._channel = open_channel(self.target, message_bytes(self.size))
        return CarrierStub(self._channel)

    @property
    def _precision(self) -> pb.Precision:
        return pb.PRECISION_UNSPECIFIED if self._memory is not None else self._wire_precision

    def _method(self, by_grpc: Any) -> Any:
        return by_grpc if self._memory is None else Method(self._memory, by_grpc, self._lost)

    def _lost(self, why: NoSharedMemory) -> None:
        if self._memory is not None:
            _log.info("parameter server %s: by gRPC for now, memory is no longer shared: %s", self.address, why)
            self._leave_memory()
            self._next_try = time.monotonic() + _TRY_AGAIN_SECONDS

    def _try_memory_again(self) -> None:
        """Try the offer of memory again: it holds as long as the shard's process, and the failure may have passed."""
        if self._memory is not None or self._offered is None or time.monotonic() < self._next_try:
            return
        with contextlib.suppress(NoSharedMemory):
            self.share_again()
            _log.info("parameter server %s: by shared memory again", self.address)

    def _leave_memory(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
