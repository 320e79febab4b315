"""A shard that says what a test wants, over a real stream to shard 0."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2_grpc as pb_grpc


class RawShard:
    """One stream. Orders are taken with `order`, which fails with the stream's error when it has ended."""

    def __init__(self, channel: grpc.Channel, **introduction: Any) -> None:
        values = {"shard": 1, "shards": 2, "instance": "raw", "description": "{}", **introduction}
        self._says: queue.SimpleQueue[pb.JoinRequest | None] = queue.SimpleQueue()
        self.say(introduction=pb.Introduction(**values))
        stub = pb_grpc.CoordinationServiceStub(channel)
        self._orders = stub.Join(iter(self._says.get, None), timeout=60)

    def say(self, **what: Any) -> None:
        """Send one message."""
        self._says.put(pb.JoinRequest(**what))

    def answer(self, order: pb.JoinResponse, **values: Any) -> None:
        """Answer an order."""
        self.say(answer=pb.Answer(order=order.order, **values))

    def order(self, kind: str) -> pb.JoinResponse:
        """The next order of this kind; those before it are answered."""
        for order in self._orders:
            if order.WhichOneof("what") == kind:
                return order
            self.answer(order, state="raw")
        raise AssertionError(f"the stream ended without {kind}")

    def kinds(self, last: str) -> list[str | None]:
        """The kinds of the orders until this one; those before it are answered."""
        found = []
        for order in self._orders:
            found.append(order.WhichOneof("what"))
            if found[-1] == last:
                return found
            self.answer(order, state="raw")
        raise AssertionError(f"the stream ended without {last}")

    def refusal(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends."""
        try:
            for order in self._orders:
                self.answer(order, state="raw")
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError("the stream ended well")

    def go(self) -> None:
        """End the stream."""
        self._says.put(None)
        self._orders.cancel()


@contextmanager
def raw_shard(address: str, **introduction: Any) -> Iterator[RawShard]:
    """A stream that has ended when the block has."""
    with grpc.insecure_channel(address) as channel:
        shard = RawShard(channel, **introduction)
        try:
            yield shard
        finally:
            shard.go()
