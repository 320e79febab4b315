"""A session with an agent, over one connection after another."""

from __future__ import annotations

import logging
import math
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

import relaax
from relaax import rlx
from relaax.client.connection.address import ServerList
from relaax.client.connection.backoff import Backoff
from relaax.client.connection.failure import ConnectionInterrupted, Failure, TrainingFinished
from relaax.client.connection.scalars import Latency, Scalars
from relaax.client.connection.wire import ClientWire
from relaax.libraries import explained
from relaax.rlx.messages import Parameters
from relaax.rlx.wire.encoding import CAPABILITIES
from relaax.tls import client_context

logger = logging.getLogger("relaax.client")

_Answer = TypeVar("_Answer", rlx.Actions, rlx.EpisodeReturns, rlx.Pong, rlx.Welcome)


ALIVE_VARIABLE = "RELAAX_ALIVE_FILE"
_ALIVE_SECONDS = 1.0


class _AliveFile:
    """The file that RELAAX_ALIVE_FILE names, for a container's health check. It is touched at most once a second.

    `due`: the time of the caller's clock from which `touch` must be called; infinity without a file.
    """

    def __init__(self) -> None:
        self._name = os.environ.get(ALIVE_VARIABLE)
        self.due = 0.0 if self._name else math.inf

    def touch(self, now: float) -> None:
        """Touch the file, because an answer arrived at `now` (seconds)."""
        assert self._name
        self.due = now + _ALIVE_SECONDS
        try:
            Path(self._name).touch()
        except OSError as error:
            self.due = math.inf
            logger.warning("cannot touch %s, which %s names: %s", self._name, ALIVE_VARIABLE, error.strerror)


class Timeouts(NamedTuple):
    """Timeouts in seconds. If `retry_seconds` is None, retries never end; 0 means no retries."""

    connect_timeout: float
    response_timeout: float
    retry_seconds: float | None


class Session:
    """A session that connects when needed, sends requests, and reconnects after a connection is lost.

    Only one thread may use it.
    """

    def __init__(
        self,
        address: str,
        hello: rlx.Hello,
        codec: str,
        timeouts: Timeouts,
        latency: Latency,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if codec not in ("protobuf", "json"):
            raise ValueError(f"codec is {codec!r}: choose protobuf or json")
        self._latency = latency
        self.scalars = Scalars(self.flush, self._latency.names)
        self._servers = ServerList(address, tls is not None)
        if self._servers.over_websocket:
            with explained("websocket"):
                from relaax.client.connection import websocket  # noqa: F401  # a missing library is reported here
        self._hello = replace(
            hello, client_name="relaax-python", client_version=relaax.__version__, host=socket.gethostname()
        )
        self._codec = codec
        self._timeouts = timeouts
        self._tls = tls
        self._backoff = Backoff(timeouts.retry_seconds)
        self._alive = _AliveFile()
        self._wire: ClientWire | None = None
        self._in_episode = False  # whether this connection has an episode
        self._finished: TrainingFinished | None = None
        self._parameter_names: Sequence[str] = ()
        self._parameters = np.zeros((hello.environments, 0))
        self._parameters_are_read = False  # whether the caller has the values of this connection

    @property
    def address(self) -> str:
        """Address of the last attempt to connect."""
        return self._servers.current

    def connect(self) -> None:
        """Connect now, with retries. Does nothing if a connection exists."""
        while self._wire is None:
            try:
                self._open()
            except ConnectionInterrupted as interrupted:
                self._handle_loss(interrupted)

    def parameters(self) -> tuple[Sequence[str], Parameters]:
        """Return the names of the server's parameters, and their values [N, P] for the next episodes.

        The array is the session's own. Connects if there is no connection.
        """
        self.connect()
        self._parameters_are_read = True
        return self._parameter_names, self._parameters

    def start(self, init: rlx.Init) -> rlx.Actions:
        """Send `init`, over new connections if necessary, and return its answer.

        On a connection whose parameters the caller has not read, all episodes are sent as partial.
        """
        while True:
            self.connect()
            sent = init
            if self._parameter_names and not self._parameters_are_read:
                sent = replace(init, partial=np.ones(self._hello.environments, np.bool_))
            try:
                answer = self._request(sent, rlx.Actions)
            except ConnectionInterrupted as interrupted:
                self._handle_loss(interrupted)
            else:
                self._backoff.succeeded()
                self._in_episode = True
                self._update_parameters(answer)
                return answer

    def step(self, step: rlx.Step) -> rlx.Actions | None:
        """Return the answer to `step`; None if the step was lost with the connection."""
        latency = self._latency
        before = latency.clock()
        ping = latency.is_due(before)
        answer = self._request_if_begun(step, rlx.Actions, ping)
        if answer is not None:
            if answer.parameters_of:
                self._update_parameters(answer)
            now = latency.clock()
            latency.add(now - before)
            if now >= self._alive.due:
                self._alive.touch(now)
            if ping:
                self.scalars.add_own(latency.report(now))
        return answer

    def reset(self, reset: rlx.Reset) -> rlx.EpisodeReturns | None:
        """Return the answer to `reset`; None if the reset was lost with the connection."""
        answer = self._request_if_begun(reset, rlx.EpisodeReturns)
        self._in_episode = False
        return answer

    def ping(self, clock: Callable[[], float]) -> float:
        """Return the round-trip time in seconds, over a new connection if the old one was lost."""
        while True:
            self.connect()
            before = clock()
            try:
                self._request(rlx.Ping(1), rlx.Pong)
            except ConnectionInterrupted as interrupted:
                self._handle_loss(interrupted)
            else:
                return clock() - before

    def flush(self) -> None:
        """Send the pending scalars. Does nothing without a connection."""
        pending = self.scalars.pop() if self._wire else None
        if self._wire and pending:
            try:
                self._wire.send(pending)
            except ConnectionInterrupted as interrupted:
                self._handle_loss(interrupted)

    def close(self) -> None:
        """Send the pending scalars and a bye. Never raises. A later call connects again."""
        wire, self._wire, self._in_episode = self._wire, None, False
        if wire is not None:
            wire.close_with_bye(self.scalars.pop())
            logger.info("disconnected from %s", self.address)

    def _abort(self) -> None:
        wire, self._wire, self._in_episode = self._wire, None, False
        if wire is not None:
            wire.close()

    def _request_if_begun(
        self, message: rlx.Step | rlx.Reset, kind: type[_Answer], ping: bool = False
    ) -> _Answer | None:
        if not self._in_episode:  # the episode was lost with an earlier connection
            return None
        try:
            return self._request(message, kind, ping)
        except ConnectionInterrupted as interrupted:
            self._handle_loss(interrupted)
            return None

    def _request(self, message: rlx.ClientMessage, kind: type[_Answer], ping: bool = False) -> _Answer:
        """Return the answer to `message`. `ping`: whether to send a ping before it and measure the round trip."""
        wire = self._wire
        assert wire is not None
        try:
            pending = None if isinstance(message, rlx.Hello) else self.scalars.pop()
            if ping:
                self._ping_before(wire, [message] if pending is None else [pending, message])
            elif pending is not None:
                wire.send(pending, message)
            elif isinstance(message, rlx.Hello):
                wire.send_hello(message)
            else:
                wire.send(message)
            answer = wire.receive()
        except rlx.LocalProtocolError as error:
            raise ValueError(error.message) from None
        except TrainingFinished as finished:
            self._finished = finished
            logger.info("%s: %s", self.address, finished)
            self.close()
            raise
        if isinstance(answer, kind):
            return answer
        raise ConnectionInterrupted(
            f"the server sent a wrong answer to {type(message).__name__}: {type(answer).__name__}", retryable=False
        )

    def _ping_before(self, wire: ClientWire, messages: Sequence[rlx.ClientMessage]) -> None:
        """Send a ping and `messages` in one write, and receive the echo, which is the first answer."""
        before = self._latency.clock()
        wire.send(rlx.Ping(1), *messages)
        echo = wire.receive()
        if not isinstance(echo, rlx.Pong):
            raise ConnectionInterrupted(
                f"the server sent a wrong echo of a ping: {type(echo).__name__}", retryable=False
            )
        self._latency.add_ping(self._latency.clock() - before)

    def _open(self) -> None:
        if self._finished is not None:
            raise self._finished
        self._backoff.wait()
        timeouts = self._timeouts
        endpoint = self._servers.choose()
        self._wire = ClientWire(
            endpoint.host,
            endpoint.port,
            path=endpoint.path,
            codec=self._codec,
            connect_timeout=timeouts.connect_timeout,
            response_timeout=timeouts.response_timeout,
            tls=client_context() if endpoint.tls and self._tls is None else self._tls,
        )
        try:
            welcome = self._request(self._hello, rlx.Welcome)
            for capability, what in CAPABILITIES.items():
                if getattr(self._hello, capability) and not getattr(welcome, capability):
                    raise ConnectionInterrupted(
                        f"the server does not support {what}: its version is too old, or its algorithm "
                        f"{welcome.algorithm} does not",
                        retryable=False,
                    )
        except BaseException:  # refused, or interrupted
            self._abort()
            raise
        count = self._hello.environments
        logger.info("connected to %s, algorithm %s, %d environment(s)", self.address, welcome.algorithm, count)
        self._servers.record_connected()
        self.scalars.set_limits(welcome.limits)
        self._receive_parameters(welcome)
        self._hello = replace(self._hello, session_id=welcome.session_id)

    def _receive_parameters(self, welcome: rlx.Welcome) -> None:
        self._parameter_names, self._parameters_are_read = welcome.parameter_names, False
        values = np.zeros(0) if welcome.parameters is None else welcome.parameters
        self._parameters = values.reshape(self._hello.environments, -1).copy()

    def _update_parameters(self, answer: rlx.Actions) -> None:
        if answer.parameters is not None:
            self._parameters[list(answer.parameters_of)] = answer.parameters.reshape(len(answer.parameters_of), -1)

    def _handle_loss(self, interrupted: ConnectionInterrupted) -> None:
        """Close the connection and record the failure. Raises Failure if no retry is left."""
        self._abort()
        if not interrupted.retryable:
            self._backoff.succeeded()
            raise Failure(f"{self.address}: {interrupted}", interrupted.code) from interrupted
        try:
            wait = self._backoff.failed(interrupted, elsewhere=self._servers.record_loss(interrupted.code))
        except Failure as failure:
            raise Failure(f"{self.address}: {failure}", failure.code) from interrupted
        logger.warning("%s: %s; trying again in %.1f s", self.address, interrupted, wait)


logger = logging.getLogger("relaax.client")
