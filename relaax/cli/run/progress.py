"""The progress of a run, as the parameter server reports it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import grpc

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.parameters.channel import Target, open_channel

POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run. Counters cover the whole training, including earlier runs in the same directory."""

    global_step: int = 0
    frames: int = 0
    updates: int = 0
    discarded: int = 0
    """Gradients that were not applied because they were too stale, not finite, or had an outlier loss:"""
    discarded_stale: int = 0
    discarded_not_finite: int = 0
    discarded_loss: int = 0
    episodes: int = 0
    mean_return_100: float | None = None
    best_mean_return_100: float | None = None
    workers: int = 0
    staleness: float = 0.0
    learning_rate: float = 0.0
    checkpoint_global_step: int | None = None
    checkpoint_time: float | None = None
    """Unix time of the last checkpoint, in seconds."""
    checkpoint_error: str = ""
    """Why the last attempt at a checkpoint failed, or empty."""
    max_global_step: int = 0
    finished: bool = False
    act_ms_p50: float | None = None
    """Median and 99th percentile of the RLX server's recent times to answer a step, in milliseconds:"""
    act_ms_p99: float | None = None
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
        self.latest = self._with_time(_progress(status))
        return self.latest

    def _with_time(self, progress: Progress) -> Progress:
        seconds = time.monotonic() - self._started_at if self._started_at is not None else 0.0
        return replace(progress, seconds=seconds, steps_at_start=self._steps_at_start or 0)

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _progress(status: pb.GetStatusResponse) -> Progress:
    return Progress(
        global_step=status.global_step,
        frames=status.frames,
        updates=status.updates,
        discarded=status.discarded,
        discarded_stale=status.discarded_stale,
        discarded_not_finite=status.discarded_not_finite,
        discarded_loss=status.discarded_loss,
        episodes=status.episodes,
        mean_return_100=status.mean_return_100 if status.HasField("mean_return_100") else None,
        best_mean_return_100=status.best_mean_return_100 if status.HasField("best_mean_return_100") else None,
        workers=status.workers,
        staleness=status.mean_staleness,
        learning_rate=status.learning_rate,
        checkpoint_global_step=status.checkpoint_global_step if status.checkpoint else None,
        checkpoint_time=status.checkpoint_time if status.checkpoint else None,
        checkpoint_error=status.checkpoint_error,
        max_global_step=status.max_global_step,
        finished=status.finished,
        act_ms_p50=status.act_ms_p50 if status.HasField("act_ms_p50") else None,
        act_ms_p99=status.act_ms_p99 if status.HasField("act_ms_p99") else None,
    )
