"""Read the progress of training and of replay memory from the servers of a service."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import grpc

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.parameters.status import TrainingStatus
from relaax.replay import replay_pb2
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from relaax.server.replay_server.table_statistics import TableStatistics
from relaax.transport.channel import Target, authentication_trouble, open_channel

POLL_SECONDS = 2.0
ANSWER_SECONDS = 5.0
ASK_SECONDS = 1.0
WINDOW_SECONDS = 10.0
"""Length of the interval over which rates of replay memory are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(TrainingStatus):
    """The state of the training, and the speed of this run.

    Counters include earlier runs of the same directory.
    """

    seconds: float = 0.0
    """Seconds since the first connection of this run."""
    steps_at_start: int = 0

    @property
    def steps_per_second(self) -> float:
        """Return the mean speed of this run."""
        return (self.global_step - self.steps_at_start) / self.seconds if self.seconds > 0 else 0.0


class ProgressReader:
    """A client of the parameter server's status. While the server is unreachable, the last answer remains.

    A failed channel is reopened. Otherwise gRPC waits longer before each attempt to connect, and a restarted parameter
    server would not be noticed for seconds.
    """

    def __init__(self, token: str = "") -> None:
        """`token`: the parameter server's token."""
        self._token = token
        self.latest = Progress()
        self._address = ""
        self._channel: grpc.Channel | None = None
        self._started_at: float | None = None
        self._steps_at_start: int | None = None

    @property
    def has_answered(self) -> bool:
        """Return whether the parameter server has ever answered."""
        return self._steps_at_start is not None

    @property
    def is_connected(self) -> bool:
        """Return whether the last poll was answered."""
        return self._channel is not None

    def poll(self, address: str) -> Progress:
        """Return the newest progress from the parameter server at `address`."""
        if address != self._address:
            self.close()
            self._address = address
        if self._channel is None:
            self._channel = open_channel(Target(address, self._token))
        stub = rpc.ParameterServerServiceStub(self._channel)
        try:
            status = stub.GetStatus(pb.GetStatusRequest(), timeout=POLL_SECONDS)
        except grpc.RpcError:
            self.close()
            return self._with_time(self.latest)
        if self._steps_at_start is None:
            self._steps_at_start = status.global_step
        if self._started_at is None and status.training_seconds > 0:
            self._started_at = time.monotonic() - status.training_seconds
        self.latest = self._with_time(Progress.from_message(status))
        return self.latest

    def _with_time(self, progress: Progress) -> Progress:
        seconds = time.monotonic() - self._started_at if self._started_at is not None else 0.0
        return replace(progress, seconds=seconds, steps_at_start=self._steps_at_start or 0)

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


@dataclass(frozen=True, slots=True)
class ReplayShardView:
    """The status of a replay server, or its `error`; neither before the first answer."""

    address: str
    error: str | None = None
    status: replay_pb2.ReplayServiceGetStatusResponse | None = None
    refused: bool = False
    """Whether authentication failed on either side."""

    @property
    def tables(self) -> dict[str, TableStatistics]:
        """Return the statistics of its tables, by name."""
        if self.status is None:
            return {}
        names = [field.name for field in fields(TableStatistics)]
        return {
            table.name: TableStatistics(**{name: getattr(table, name) for name in names})
            for table in self.status.tables
        }

    @property
    def sum(self) -> TableStatistics:
        """Return the sum of the statistics of its tables."""
        return sum(self.tables.values(), TableStatistics())


class ReplayShards:
    """A client that polls the status of replay servers."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._shards = [_PolledShard(target) for target in targets]

    def poll(self, seconds: float = ANSWER_SECONDS) -> list[ReplayShardView]:
        """Request the status of all servers at once, and return the answers that arrive within `seconds`.

        For a slower server, the previous view is returned. A later call returns the late answer.
        """
        for shard in self._shards:
            shard.request()
        deadline = time.monotonic() + seconds
        return [shard.wait(max(0.0, deadline - time.monotonic())) for shard in self._shards]

    def close(self) -> None:
        """Close the connections."""
        for shard in self._shards:
            shard.close()


class _PolledShard:
    """A replay server with at most one pending request. A failed channel is reopened, to connect without backoff."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._view = ReplayShardView(target.address)
        self._channel: grpc.Channel | None = None
        self._call: Any = None

    def request(self) -> None:
        if self._channel is None:
            self._channel = open_channel(self._target)
        if self._call is None:
            request = replay_pb2.ReplayServiceGetStatusRequest()
            self._call = ReplayServiceStub(self._channel).GetStatus.future(request, timeout=ANSWER_SECONDS)

    def wait(self, seconds: float) -> ReplayShardView:
        try:
            status = self._call.result(seconds)
        except grpc.FutureTimeoutError:
            return self._view
        except grpc.RpcError as error:
            trouble = authentication_trouble(error, self._target)
            error_text = trouble or f"{error.code().name}: {error.details()}"
            self._view = ReplayShardView(self._target.address, error_text, refused=trouble is not None)
            self.close()
        else:
            self._view = ReplayShardView(self._target.address, status=status)
            self._call = None
        return self._view

    def close(self) -> None:
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()


def table_row(statistics: TableStatistics) -> dict[str, Any]:
    """Return the statistics of a table, for JSON."""
    inserts = statistics.inserts
    return asdict(statistics) | {"samples_per_insert": statistics.samples / inserts if inserts else None}


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The sum of all tables of the shards that answer. Rates are over the last WINDOW_SECONDS, None until known.

    samples_per_insert: over the same time. mean_age: number of later inserts into the shard of a sampled item.
    """

    shards: int
    answering: int
    size: int
    capacity: int
    mean_age: float
    inserts_per_second: float | None = None
    samples_per_second: float | None = None
    updates_per_second: float | None = None

    @property
    def samples_per_insert(self) -> float | None:
        """Return the number of sampled items per inserted item; None without inserts."""
        if not self.inserts_per_second or self.samples_per_second is None:
            return None
        return self.samples_per_second / self.inserts_per_second


class ReplayProgressReader:
    """A client that polls the replay servers about once a second, without waiting for answers."""

    def __init__(self, token: str = "") -> None:
        """`token`: the replay servers' token."""
        self._token = token
        self._addresses: Sequence[str] = ()
        self._shards = ReplayShards([])
        self._history: deque[tuple[float, frozenset[str], tuple[int, int, int]]] = deque()
        """Time, addresses that answer, and the numbers of inserts, samples and updates."""
        self._polled_at = 0.0
        self.latest: ReplayProgress | None = None

    def poll(self, addresses: Sequence[str], updates: int) -> ReplayProgress | None:
        """Return the newest progress of the replay servers at `addresses`; None without replay servers.

        `updates`: number of updates of the training so far.
        """
        if list(addresses) != list(self._addresses):
            self.close()
            self._addresses, self.latest = list(addresses), None
            self._history.clear()
            self._shards = ReplayShards([Target(address, self._token) for address in addresses])
        now = time.monotonic()
        if addresses and (self.latest is None or now - self._polled_at >= ASK_SECONDS):
            self._polled_at = now
            self.latest = self._read(now, updates)
        return self.latest

    def close(self) -> None:
        """Close the connections."""
        self._shards.close()

    def _read(self, now: float, updates: int) -> ReplayProgress:
        views = self._shards.poll(0.0)
        answered = [view for view in views if view.status is not None]
        statistics = sum((view.sum for view in answered), TableStatistics())
        answering = frozenset(view.address for view in answered)
        counts = (statistics.inserts, statistics.samples, updates)
        if self._history:
            _, before, earlier = self._history[-1]
            # Differences of counts are valid only if the same shards answer and no shard has restarted.
            if before != answering or any(old > new for old, new in zip(earlier, counts, strict=True)):
                self._history.clear()
        self._history.append((now, answering, counts))
        while now - self._history[0][0] > WINDOW_SECONDS:
            self._history.popleft()
        since, _, first = self._history[0]
        known = now > since and bool(answered)
        rates = [(new - old) / (now - since) if known else None for old, new in zip(first, counts, strict=True)]
        return ReplayProgress(
            len(views), len(answered), statistics.size, statistics.capacity, statistics.mean_age, *rates
        )
