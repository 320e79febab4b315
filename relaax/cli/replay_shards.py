"""Ask replay servers how they stand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import grpc

from relaax.replay import replay_pb2 as pb
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from relaax.server.replay_server.held_table import TableTallies
from relaax.transport.channel import Target, authentication_trouble, open_channel

ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ReplayShardView:
    """A replay server's answer, or the `error` in its place; neither before it has answered."""

    address: str
    error: str | None = None
    status: pb.ReplayServiceGetStatusResponse | None = None
    refused: bool = False
    """Whether it, or this side, does not trust the other."""

    @property
    def tables(self) -> dict[str, TableTallies]:
        """What has happened to its tables, by name."""
        if self.status is None:
            return {}
        names = [field.name for field in fields(TableTallies)]
        return {
            table.name: TableTallies(**{name: getattr(table, name) for name in names}) for table in self.status.tables
        }

    @property
    def sum(self) -> TableTallies:
        """What has happened to all of its tables."""
        return sum(self.tables.values(), TableTallies())


class ReplayShards:
    """Replay servers that are asked again and again. A channel that has failed is opened anew: it dials at once."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._views = [ReplayShardView(target.address) for target in targets]
        self._channels: list[grpc.Channel | None] = [None] * len(targets)
        self._calls: list[Any] = [None] * len(targets)

    def look(self, seconds: float = ANSWER_SECONDS) -> list[ReplayShardView]:
        """Ask each one, all at once, and return what they answer within so many seconds.

        Whoever takes longer is seen as it was, and what it answers yet comes with a later call.
        """
        for number, target in enumerate(self._targets):
            channel = self._channels[number]
            if channel is None:
                channel = self._channels[number] = open_channel(target)
            if self._calls[number] is None:
                stub = ReplayServiceStub(channel)
                request = pb.ReplayServiceGetStatusRequest()
                self._calls[number] = stub.GetStatus.future(request, timeout=ANSWER_SECONDS)
        deadline = time.monotonic() + seconds
        for number in range(len(self._targets)):
            self._take(number, max(0.0, deadline - time.monotonic()))
        return list(self._views)

    def close(self) -> None:
        """Close the connections."""
        for number in range(len(self._targets)):
            self._close(number)

    def _take(self, number: int, seconds: float) -> None:
        call, target = self._calls[number], self._targets[number]
        try:
            status = call.result(seconds)
        except grpc.FutureTimeoutError:
            return
        except grpc.RpcError as error:
            trouble = authentication_trouble(error, target)
            said = trouble or f"{error.code().name}: {error.details()}"
            self._views[number] = ReplayShardView(target.address, said, refused=trouble is not None)
            self._close(number)
        else:
            self._views[number] = ReplayShardView(target.address, status=status)
            self._calls[number] = None

    def _close(self, number: int) -> None:
        channel, self._channels[number], self._calls[number] = self._channels[number], None, None
        if channel is not None:
            channel.close()


def table_row(tallies: TableTallies) -> dict[str, Any]:
    """Return what has happened to a table, for JSON."""
    inserts = tallies.inserts
    return asdict(tallies) | {"samples_per_insert": tallies.samples / inserts if inserts else None}
