"""The progress of a run, as the parameter server reports it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import grpc

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.parameters.status import TrainingStatus
from relaax.transport.channel import Target, open_channel

POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(TrainingStatus):
    """The state of the training, and what this run has done of it.

    Counters are those of the whole training, earlier runs of the same directory included.
    """

    seconds: float = 0.0
    """Seconds since the first connection of this run."""
    steps_at_start: int = 0

    @property
    def steps_per_second(self) -> float:
        """Return the mean speed of this run."""
        return (self.global_step - self.steps_at_start) / self.seconds if self.seconds > 0 else 0.0


class ProgressReader:
    """Poll the parameter server; while it is unreachable, the last answer remains.

    A channel that has failed is reopened: otherwise gRPC waits longer before each attempt to connect, and a parameter
    server that is back would not be noticed for seconds.
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
    def heard(self) -> bool:
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
        try:
            status = rpc.ParameterServerServiceStub(self._channel).GetStatus(
                pb.GetStatusRequest(), timeout=POLL_SECONDS
            )
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
