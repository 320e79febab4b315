"""Continue a session with the agent over several connections."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import relaax
from relaax import rlx
from relaax.client.connection.address import Places
from relaax.client.connection.backoff import Backoff
from relaax.client.connection.failure import ConnectionInterrupted, Failure, TrainingFinished
from relaax.client.connection.scalars import Latency, Scalars
from relaax.client.connection.wire import ClientWire
from relaax.libraries import explained
from relaax.tls import client_context

logger = logging.getLogger("relaax.client")

_Answer = TypeVar("_Answer", rlx.Actions, rlx.EpisodeReturns, rlx.Pong, rlx.Welcome)


@dataclass(frozen=True, slots=True)
class Patience:
    """The seconds to wait for each thing. `retry_seconds` None means forever, 0 not to retry."""

    connect_timeout: float = 10.0
    response_timeout: float = 60.0
    retry_seconds: float | None = 300.0


class Session:
    """A session that connects when needed, sends requests, and reconnects after a connection is lost.

    Used by one thread.
    """

    def __init__(
        self,
        address: str,
        hello: rlx.Hello,
        *,
        codec: str,
        patience: Patience,
        latency: Latency | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if codec not in ("protobuf", "json"):
            raise ValueError(f"codec is {codec!r}: choose protobuf or json")
        self._latency = latency or Latency(None)
        self.scalars = Scalars(self.flush, self._latency.names)
        self._places = Places(address, tls is not None)
        if self._places.over_websocket:
            with explained("websocket"):
                from relaax.client.connection import websocket  # noqa: F401  # a missing library is to be missed now
        self._hello = replace(
            hello, client_name="relaax-python", client_version=relaax.__version__, host=socket.gethostname()
        )
        self._codec = codec
        self._patience = patience
        self._tls = tls
        self._backoff = Backoff(patience.retry_seconds)
        self._alive = Alive()
        self._wire: ClientWire | None = None
        self._begun = False  # an episode, on this connection
        self._finished: TrainingFinished | None = None

    @property
    def address(self) -> str:
        """Return where the server is that was tried last."""
        return self._places.here

    def connect(self) -> None:
        """Connect now, with retries. Does nothing if a connection is up."""
        while self._wire is None:
            try:
                self._open()
            except ConnectionInterrupted as interrupted:
                self._lost(interrupted)

    def start(self, init: rlx.Init) -> rlx.Actions:
        """Send `init` over this connection or the next ones until it is answered."""
        while True:
            self.connect()
            try:
                answer = self._ask(init, rlx.Actions)
            except ConnectionInterrupted as interrupted:
                self._lost(interrupted)
            else:
                self._backoff.succeeded()
                self._begun = True
                return answer

    def step(self, step: rlx.Step) -> rlx.Actions | None:
        """Return the answer to `step`; None if the connection was lost, and with it the step."""
        latency = self._latency
        before = latency.clock()
        ping = latency.is_due(before)
        answer = self._ask_begun(step, rlx.Actions, ping)
        if answer is not None:
            now = latency.clock()
            latency.add(now - before)
            if now >= self._alive.due:
                self._alive.answered(now)
            if ping:
                self.scalars.own(latency.report(now))
        return answer

    def reset(self, reset: rlx.Reset) -> rlx.EpisodeReturns | None:
        """Return the answer to `reset`; None if the connection was lost, and with it the message."""
        answer = self._ask_begun(reset, rlx.EpisodeReturns)
        self._begun = False
        return answer

    def ping(self, clock: Callable[[], float]) -> float:
        """Return the seconds that a message and its echo take, over a new connection if the old one was lost."""
        while True:
            self.connect()
            before = clock()
            try:
                self._ask(rlx.Ping(1), rlx.Pong)
            except ConnectionInterrupted as interrupted:
                self._lost(interrupted)
            else:
                return clock() - before

    def flush(self) -> None:
        """Send the gathered scalars, if there is a connection."""
        gathered = self.scalars.take() if self._wire else None
        if self._wire and gathered:
            try:
                self._wire.tell(gathered)
            except ConnectionInterrupted as interrupted:
                self._lost(interrupted)

    def close(self) -> None:
        """Send what is left and say goodbye. Never raises; a later call connects anew."""
        wire, self._wire, self._begun = self._wire, None, False
        if wire is not None:
            wire.leave(self.scalars.take())
            logger.info("left %s", self.address)

    def abort(self) -> None:
        """Close without a goodbye."""
        wire, self._wire, self._begun = self._wire, None, False
        if wire is not None:
            wire.close()

    def _ask_begun(self, message: rlx.Step | rlx.Reset, kind: type[_Answer], ping: bool = False) -> _Answer | None:
        if not self._begun:  # a connection without an episode replaced the one that this message belongs to
            return None
        try:
            return self._ask(message, kind, ping)
        except ConnectionInterrupted as interrupted:
            self._lost(interrupted)
            return None

    def _ask(self, message: rlx.ClientMessage, kind: type[_Answer], ping: bool = False) -> _Answer:
        """Return the answer to `message`. `ping`: measure on the way how long the echo of a ping takes."""
        wire = self._wire
        assert wire is not None
        try:
            gathered = None if isinstance(message, rlx.Hello) else self.scalars.take()
            if ping:
                self._ping_along(wire, [message] if gathered is None else [gathered, message])
            elif gathered is None:
                wire.tell(message)
            else:
                wire.tell(gathered, message)
            answer = wire.hear()
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
            f"the server answered {type(message).__name__} with {type(answer).__name__}", retryable=False
        )

    def _ping_along(self, wire: ClientWire, messages: Sequence[rlx.ClientMessage]) -> None:
        """Send a ping in front of `messages` in one write, and hear its echo: the server answers in order."""
        before = self._latency.clock()
        wire.tell(rlx.Ping(1), *messages)
        echo = wire.hear()
        if not isinstance(echo, rlx.Pong):
            raise ConnectionInterrupted(f"the server answered Ping with {type(echo).__name__}", retryable=False)
        self._latency.pinged(self._latency.clock() - before)

    def _open(self) -> None:
        if self._finished is not None:
            raise self._finished
        self._backoff.wait()
        patience = self._patience
        endpoint = self._places.choose()
        self._wire = ClientWire(
            endpoint.host,
            endpoint.port,
            path=endpoint.path,
            codec=self._codec,
            connect_timeout=patience.connect_timeout,
            silence=patience.response_timeout,
            tls=client_context() if endpoint.tls and self._tls is None else self._tls,
        )
        try:
            welcome = self._ask(self._hello, rlx.Welcome)
        except BaseException:  # not let in, or interrupted: there is no connection to ask anything else on
            self.abort()
            raise
        logger.info(
            "connected to %s, algorithm %s, %d environment(s)",
            self.address,
            welcome.algorithm,
            self._hello.environments,
        )
        self._places.connected()
        self.scalars.limit(welcome.limits)
        self._hello = replace(self._hello, session_id=welcome.session_id)

    def _lost(self, interrupted: ConnectionInterrupted) -> None:
        """Close the connection and note why. Raises Failure if no other connection is to be tried."""
        self.abort()
        if not interrupted.retryable:
            self._backoff.succeeded()
            raise Failure(f"{self.address}: {interrupted}", interrupted.code) from interrupted
        try:
            wait = self._backoff.failed(interrupted, elsewhere=self._places.lost(interrupted.code))
        except Failure as failure:
            raise Failure(f"{self.address}: {failure}", failure.code) from interrupted
        logger.warning("%s: %s; trying again in %.1f s", self.address, interrupted, wait)


logger = logging.getLogger("relaax.client")

ALIVE_VARIABLE = "RELAAX_ALIVE_FILE"
_SECONDS = 1.0


class Alive:
    """Touch the file that the environment variable RELAAX_ALIVE_FILE names, at most once a second; none if it is unset.

    `due`: the time, by the clock of whoever calls, from which on `answered` has something to do; infinite if never.
    """

    def __init__(self) -> None:
        name = os.environ.get(ALIVE_VARIABLE)
        self._file = Path(name) if name else None
        self.due = 0.0 if name else float("inf")

    def answered(self, now: float) -> None:
        """Note an answer at `now`, in seconds."""
        assert self._file is not None
        self.due = now + _SECONDS
        try:
            self._file.touch()
        except OSError as error:
            self.due = float("inf")
            logger.warning("cannot write %s, the file of %s: %s", self._file, ALIVE_VARIABLE, error.strerror)
