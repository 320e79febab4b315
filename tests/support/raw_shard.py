"""A shard that sends any messages over a real stream to shard 0."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc


class RawShard:
    """One stream to shard 0. After its end, `order` raises the stream's error."""

    def __init__(self, channel: grpc.Channel, **introduction: Any) -> None:
        values = {"shard": 1, "shards": 2, "instance": "raw", "description": "{}", **introduction}
        self._says: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self.send(introduction=pb.Introduction(**values))
        stub = pb_grpc.CoordinationServiceStub(channel)
        self._orders = stub.Join(iter(self._says.get, None), timeout=60)

    def send(self, **what: Any) -> None:
        """Send one message."""
        self._says.put(pb.JoinRequest(**what))

    def answer(self, order: pb.JoinResponse, **values: Any) -> None:
        """Answer an order."""
        self.send(answer=pb.Answer(order=order.order, **values))

    def order(self, kind: str) -> pb.JoinResponse:
        """Return the next order of this kind. Earlier orders are answered."""
        for order in self._orders:
            if order.WhichOneof("what") == kind:
                return order
            self.answer(order, state="raw")
        raise AssertionError(f"the stream ended without {kind}")

    def kinds(self, last: str) -> list[str | None]:
        """Return the kinds of the orders up to the kind `last`. Earlier orders are answered."""
        found = []
        for order in self._orders:
            found.append(order.WhichOneof("what"))
            if found[-1] == last:
                return found
            self.answer(order, state="raw")
        raise AssertionError(f"the stream ended without {last}")

    def refusal(self) -> tuple[grpc.StatusCode, str]:
        """Wait for the stream's error, and return its code and details."""
        try:
            for order in self._orders:
                self.answer(order, state="raw")
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError("the stream ended without an error")

    def go(self) -> None:
        """End the stream."""
        self._says.put(None)
        self._orders.cancel()


@contextmanager
def raw_shard(address: str, **introduction: Any) -> Iterator[RawShard]:
    """Open a stream, and end it at the end of the block."""
    with grpc.insecure_channel(address) as channel:
        shard = RawShard(channel, **introduction)
        try:
            yield shard
        finally:
            shard.go()
