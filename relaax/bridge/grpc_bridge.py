"""The bridge over gRPC."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from types import MappingProxyType

import grpc
import numpy as np

from relaax.bridge import parameter_server_pb2 as pb
from relaax.bridge import parameter_server_pb2_grpc as pb_grpc
from relaax.bridge.base import (
    BridgeBase,
    BridgeError,
    FlatVector,
    Pulled,
    Pushed,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.bridge.calls import Calls
from relaax.bridge.gathered import Gathered
from relaax.bridge.memory import keep_freed_memory
from relaax.bridge.moments import Moments
from relaax.bridge.options import client_options
from relaax.bridge.statistics import statistics_from_messages, statistics_to_messages

_log = logging.getLogger(__name__)
_DISCARDED = {
    pb.DISCARD_UNSPECIFIED: None,
    pb.DISCARD_STALE: "stale",
    pb.DISCARD_INCARNATION: "incarnation",
    pb.DISCARD_NOT_FINITE: "not_finite",
}
_REPORT_INTERVAL = 1.0
_MAX_REGISTRATIONS = 5


class GrpcBridge(BridgeBase):
    """A worker's way to one parameter server over gRPC.

    `timeout` is the deadline of each call and `unavailable_after` how long a server may be away, both in seconds. Made
    in the process that uses it: a channel does not survive a fork.
    """

    def __init__(self, address: str, *, timeout: float = 15.0, unavailable_after: float = 60.0) -> None:
        self._address = address
        self._call = Calls(address, timeout, unavailable_after)
        self._channel: grpc.Channel | None = None
        self._stub = self._open(parameters=0)
        self._registration: Registration | None = None
        self._gathered = Gathered()
        self._unanswered_report: pb.ReportRequest | None = None
        self._worker_id = ""
        self._incarnation = 0
        self._parameters = 0
        self._push_id = 0
        self._report_id = 0
        self._reported = -_REPORT_INTERVAL
        self._pulled: Pulled | None = None
        self._global_step = 0

    @property
    def global_step(self) -> int:
        return self._global_step

    def register(self, registration: Registration) -> Registered:
        self._registration = registration
        self._worker_id = uuid.uuid4().hex
        self._push_id = self._report_id = 0
        response = self._call(
            self._stub.Register,
            pb.RegisterRequest(
                worker_id=self._worker_id,
                session_id=registration.session_id,
                environments=registration.environments,
                fingerprint=registration.fingerprint,
                role=pb.ROLE_EXPLOIT if registration.exploit else pb.ROLE_TRAIN,
                frame_skip=registration.frame_skip,
                environment=registration.environment,
            ),
        )
        self._incarnation = response.incarnation
        self._see(response.global_step, response.finished)
        if response.shards != 1:
            raise BridgeError(f"parameter server {self._address} is one of {response.shards} shards: name them all")
        if self._parameters != response.parameters:
            if self._parameters:
                raise BridgeError(
                    f"parameter server {self._address} has {response.parameters} parameters now, "
                    f"it had {self._parameters}"
                )
            self._parameters = response.parameters
            self._stub = self._open(response.parameters)
        return Registered(response.parameters, tuple(response.actors), response.global_step)

    def pull(self) -> Pulled:
        for _ in range(_MAX_REGISTRATIONS):
            request = pb.PullRequest(worker_id=self._worker_id, incarnation=self._incarnation)
            if self._pulled is not None:
                request.have_version = self._pulled.version
            response = self._call(self._stub.Pull, request)
            if response.incarnation_ended:
                self._register_again()
                continue
            self._see(response.global_step, response.finished)
            if response.not_modified and self._pulled is not None:
                return self._with_statistics(self._pulled, response.statistics)
            return self._take(response)
        raise self._no_end_of_incarnations()

    def push(self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True) -> Pushed:
        if gradient is not None and (gradient.shape != (self._parameters,) or gradient.dtype != np.float32):
            raise ValueError(
                f"a gradient is float32 of shape ({self._parameters},), not {gradient.dtype} {gradient.shape}"
            )
        if gradient is not None and self._pulled is None:
            raise RuntimeError("a gradient is computed on parameters: pull before the first push")
        request = pb.PushRequest(
            base_version=self._pulled.version if self._pulled else 0,
            gradient=b"" if gradient is None else gradient.astype("<f4", copy=False).tobytes(),
            env_steps=env_steps,
            want_parameters=want_parameters,
            report=self._gathered.take(),
            statistics=statistics_to_messages(self._gathered.take_statistics()),
        )
        response = self._push(request)
        discarded = _DISCARDED[response.discard]
        if response.discard == pb.DISCARD_INCARNATION:
            want_parameters = True
            response = self._count_again(request)
        self._see(response.global_step, response.finished)
        pulled = self._take(response) if want_parameters else None
        return Pushed(discarded, response.global_step, response.version, response.staleness, pulled)

    def scalar(self, name: str, value: float) -> None:
        self._gathered.scalar(name, value)

    def sample(self, name: str, value: float) -> None:
        self._gathered.sample(name, value)

    def gauge(self, name: str, value: float) -> None:
        self._gathered.gauge(name, value)

    def statistic(self, name: str, moments: Moments) -> None:
        self._gathered.statistic(name, moments)

    def episode(self, episode_return: float, length: int) -> None:
        self._gathered.episode(episode_return, length)

    def flush(self) -> None:
        if time.monotonic() - self._reported < _REPORT_INTERVAL:
            return
        self._reported = time.monotonic()
        for _ in range(_MAX_REGISTRATIONS):
            request = self._next_report()
            if request is None:
                return
            response = self._call(self._stub.Report, request)
            if not response.incarnation_ended:
                self._unanswered_report = None
                self._see(response.global_step, response.finished)
                return
            self._register_again()
        raise self._no_end_of_incarnations()

    def close(self) -> None:
        if self._channel is None:
            return
        if self._incarnation:
            with contextlib.suppress(grpc.RpcError, ValueError):
                report = self._unanswered_report.report if self._unanswered_report else self._gathered.take()
                self._stub.Leave(pb.LeaveRequest(worker_id=self._worker_id, report=report), timeout=3.0)
        self._channel.close()
        self._channel = None

    def _open(self, parameters: int) -> pb_grpc.ParameterServerServiceStub:
        """A stub on a new channel that takes messages as long as the vector needs, and no longer ones."""
        if self._channel is not None:
            self._channel.close()
        keep_freed_memory(4 * parameters)
        self._channel = grpc.insecure_channel(self._address, options=client_options(parameters))
        return pb_grpc.ParameterServerServiceStub(self._channel)

    def _push(self, request: pb.PushRequest) -> pb.PushResponse:
        """The request under a number of its own, and its answer."""
        self._push_id += 1
        request.worker_id, request.incarnation, request.push_id = self._worker_id, self._incarnation, self._push_id
        request.global_step = self._global_step
        response: pb.PushResponse = self._call(self._stub.Push, request)
        return response

    def _count_again(self, request: pb.PushRequest) -> pb.PushResponse:
        """Tell the new incarnation of steps, episodes and statistics whose gradient went with the old one."""
        request.base_version, request.gradient, request.want_parameters = 0, b"", True
        for _ in range(_MAX_REGISTRATIONS):
            self._register_again()
            response = self._push(request)
            if response.discard != pb.DISCARD_INCARNATION:
                return response
        raise self._no_end_of_incarnations()

    def _register_again(self) -> None:
        assert self._registration is not None, "register first"
        _log.warning("parameter server %s has begun a new incarnation: registering again", self._address)
        self._pulled = None
        self.register(self._registration)

    def _next_report(self) -> pb.ReportRequest | None:
        """The report that got no answer yet, under the number it had; else what was gathered since."""
        if self._unanswered_report is None:
            if not self._gathered:
                return None
            self._unanswered_report = pb.ReportRequest(report=self._gathered.take())
        request = self._unanswered_report
        if request.worker_id != self._worker_id:
            self._report_id += 1
            request.worker_id, request.report_id = self._worker_id, self._report_id
        return request

    def _take(self, response: pb.PushResponse | pb.PullResponse) -> Pulled:
        data = response.parameters
        if len(data) != 4 * self._parameters:
            raise BridgeError(f"parameter server {self._address} sent {len(data)} bytes for {self._parameters} numbers")
        parameters = np.frombuffer(data, "<f4")
        return self._hold(parameters, response.version, response.statistics)

    def _with_statistics(self, pulled: Pulled, messages: Sequence[pb.Moments]) -> Pulled:
        """`pulled` where it has these statistics; else its parameters with these."""
        if statistics_to_messages(pulled.statistics) == list(messages):
            return pulled
        return self._hold(pulled.parameters, pulled.version, messages)

    def _hold(self, parameters: FlatVector, version: int, messages: Sequence[pb.Moments]) -> Pulled:
        try:
            statistics = MappingProxyType(statistics_from_messages(messages))
        except ValueError as error:
            raise BridgeError(f"parameter server {self._address} sent what is no statistic: {error}") from None
        self._pulled = Pulled(parameters, version, self._global_step, statistics)
        return self._pulled

    def _see(self, global_step: int, finished: bool) -> None:
        self._global_step = global_step
        if finished:
            raise TrainingEnded(global_step)

    def _no_end_of_incarnations(self) -> BridgeError:
        return BridgeError(f"parameter server {self._address} forgot this worker {_MAX_REGISTRATIONS} times running")
