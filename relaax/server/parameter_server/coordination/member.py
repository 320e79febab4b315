"""Shard 0's view of a shard that has joined."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from relaax.server.parameter_server.coordination import coordination_pb2 as pb


class ShardLost(Exception):
    """The stream of a shard has ended."""


class Member:
    """Orders to a shard and its answers. Thread-safe."""

    def __init__(self, introduction: pb.Introduction) -> None:
        self.shard = introduction.shard
        self.instance = introduction.instance
        self._name = f"shard {introduction.shard} of {introduction.shards}"
        self._orders: queue.SimpleQueue[pb.JoinResponse | None] = queue.SimpleQueue()
        self._unanswered: dict[int, Future[pb.Answer]] = {}
        self._number = 0
        self._lost = False
        self.gone = threading.Event()
        """Set once its stream has ended."""
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._name

    def ask(self, **what: Any) -> Future[pb.Answer]:
        """Send an order and return its future answer, which fails with ShardLost if the stream ends first."""
        future: Future[pb.Answer] = Future()
        with self._lock:
            if self._lost:
                future.set_exception(ShardLost(f"{self} is away"))
                return future
            self._number += 1
            self._unanswered[self._number] = future
            self._orders.put(pb.JoinResponse(order=self._number, **what))
        return future

    def answered(self, answer: pb.Answer) -> None:
        """Deliver an answer; one to no pending order is ignored."""
        with self._lock:
            future = self._unanswered.pop(answer.order, None)
        if future is not None:
            future.set_result(answer)

    def orders(self) -> Iterator[pb.JoinResponse]:
        """Yield the orders to send, until the stream ends."""
        while (order := self._orders.get()) is not None:
            yield order

    def lose(self) -> None:
        """End the stream, and fail all pending orders."""
        with self._lock:
            self._lost = True
            unanswered, self._unanswered = self._unanswered, {}
        for future in unanswered.values():
            future.set_exception(ShardLost(f"{self} is away"))
        self._orders.put(None)
