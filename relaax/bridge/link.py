"""A worker's end of the connection to one shard."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc
import numpy as np

from relaax.bridge import parameter_server_pb2 as pb
from relaax.bridge.base import BridgeError, FlatVector
from relaax.bridge.calls import Call
from relaax.bridge.channel import Target, open_channel
from relaax.bridge.wire import Carrier, CarrierStub, float32_of


def shard_range(parameters: int, shard: int, shards: int) -> tuple[int, int]:
    """First element of a vector of so many that the shard owns, and one past its last."""
    return shard * parameters // shards, (shard + 1) * parameters // shards


class Link:
    """One shard: its channel, its range `[start, end)` of the flat vector, the version that the worker has of it, and
    the number of the worker's last push. Shard 0 counts steps and gathers metrics for all of them.
    """

    def __init__(self, target: Target, shard: int = 0) -> None:
        self.target = target
        self.shard = shard
        self.start = self.end = 0
        self.version: int | None = None
        self._push_id = 0
        self._channel: grpc.Channel | None = None
        self._stub = self._open()

    @property
    def address(self) -> str:
        """HOST:PORT of the shard."""
        return self.target.address

    @property
    def size(self) -> int:
        """How many elements of the vector are its."""
        return self.end - self.start

    def register(self, request: pb.RegisterRequest) -> Call:
        """A worker introduces itself: its pushes are counted from 1, and it has no parameters."""
        self._push_id = 0
        self.version = None
        return Call(self._stub.Register, request, self.target)

    def check_place(self, response: pb.RegisterResponse, shards: int) -> None:
        """Raises BridgeError where it is not the shard that the order of addresses says, or another range is its."""
        if response.shards != shards:
            raise BridgeError(
                f"parameter server {self.address} is one of {response.shards} shards, and {shards} "
                f"{'address was' if shards == 1 else 'addresses were'} given: name them all, shard 0 first"
            )
        if response.shard != self.shard:
            raise BridgeError(
                f"parameter server {self.address} is shard {response.shard}, and it was named where shard {self.shard} "
                "belongs: name them in their order, shard 0 first"
            )
        if (response.range_start, response.range_end) != shard_range(response.parameters, self.shard, shards):
            raise BridgeError(
                f"parameter server {self.address} holds the elements from {response.range_start} to "
                f"{response.range_end} of {response.parameters}, which shard {self.shard} of {shards} does not"
            )

    def take_range(self, response: pb.RegisterResponse) -> None:
        """The shard owns this range from now on."""
        size = self.size
        self.start, self.end = response.range_start, response.range_end
        if self.size != size:
            self._stub = self._open()

    def push(self, worker_id: str, incarnation: int, common: pb.PushRequest, gradient: FlatVector | None) -> Call:
        """The shard's part of a push, under a number of its own."""
        self._push_id += 1
        request = pb.PushRequest(
            worker_id=worker_id,
            incarnation=incarnation,
            push_id=self._push_id,
            base_version=self.version or 0,
            global_step=common.global_step,
            want_parameters=common.want_parameters,
            withheld=common.withheld,
        )
        if self.shard == 0:
            request.env_steps = common.env_steps
            request.report.CopyFrom(common.report)
            request.statistics.extend(common.statistics)
        part = b"" if gradient is None else np.ascontiguousarray(gradient[self.start : self.end], "<f4")
        return Call(self._stub.Push, Carrier(request, part), self.target)

    def pull(self, worker_id: str, incarnation: int) -> Call:
        """Ask for the shard's range, unless the worker has it."""
        request = pb.PullRequest(worker_id=worker_id, incarnation=incarnation)
        if self.version is not None:
            request.have_version = self.version
        return Call(self._stub.Pull, request, self.target)

    def report(self, request: pb.ReportRequest) -> Call:
        """Metrics without a push."""
        return Call(self._stub.Report, request, self.target)

    def received(self, response: Carrier[pb.PushResponse] | Carrier[pb.PullResponse]) -> FlatVector:
        """The parameters of the shard's range: a view of the response, read-only float32 of shape [size].

        Raises BridgeError where they are too many or too few.
        """
        data = response.data
        if len(data) != 4 * self.size:
            raise BridgeError(f"parameter server {self.address} sent {len(data)} bytes for {self.size} numbers")
        self.version = response.message.version
        return float32_of(data)

    def leave(self, request: pb.LeaveRequest, timeout: float) -> Any:
        """Say goodbye, without waiting: the answer is a gRPC future, or None where the channel is closed."""
        with contextlib.suppress(ValueError):
            return self._stub.Leave.future(request, timeout=timeout)
        return None

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self) -> CarrierStub:
        """A stub on a new channel that takes messages as long as the range needs, and no longer ones."""
        self.close()
        self._channel = open_channel(self.target, self.size)
        return CarrierStub(self._channel)
