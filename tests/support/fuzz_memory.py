"""The fuzz test's cases in memory: nothing but RemoteProtocolError may come out, and what a server ought to answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relaax.algorithm_base import AgentContext
from relaax.rlx import (
    NEED_DATA,
    Bye,
    ClientConnection,
    ConnectionClosed,
    Error,
    ErrorCode,
    Hello,
    Init,
    Limits,
    LocalProtocolError,
    Message,
    Metrics,
    Mode,
    Ping,
    Pong,
    RemoteProtocolError,
    Reset,
    Sender,
    ServerConnection,
    Welcome,
)
from relaax.server.rlx_server.workers.session import AgentSession
from support.fuzz_algorithm import Agent, Config
from support.fuzz_cases import Case
from support.fuzz_messages import golden
from support.offline_client import OfflineClient

MAX_FRAME_MEGABYTES = 1
LIMITS = Limits(max_frame_bytes=MAX_FRAME_MEGABYTES * 2**20)


@dataclass
class Expected:
    """What a server says to a case, pings aside, and how many of its frames it reads.

    `turns`: for each chunk of the case until the end, how many answers have come once it was read. `early`: the error
    is that of a frame which came with the one before it, and if those come apart another error may be due.
    """

    answers: list[Message] = field(default_factory=list)
    frames_read: int = 0
    turns: list[int] = field(default_factory=list)
    early: bool = False

    @property
    def error(self) -> ErrorCode | None:
        last = self.answers[-1] if self.answers else None
        return last.code if isinstance(last, Error) else None


def expected(case: Case) -> Expected:
    """A server's side in memory, with the worker's own session and agent. Raises whatever a worker would."""
    connection, found = ServerConnection(LIMITS), Expected()
    session: AgentSession | None = None
    for data in (*case.frames, b""):
        connection.receive_data(data)
        assert connection.buffered <= 4 + LIMITS.max_frame_bytes + len(data)
        while True:
            try:
                event: Any = connection.next_event()
            except RemoteProtocolError as error:
                assert 0 < len(error.message) <= 2000
                found.frames_read += 1
                _say(connection, found, Error.of(error))
                return found
            if event is NEED_DATA:
                found.turns.append(len(found.answers))
                break
            if isinstance(event, ConnectionClosed | Bye):
                found.frames_read += isinstance(event, Bye)
                return found
            found.frames_read += 1
            if isinstance(event, Hello):
                session = _session(connection, event)
            try:
                _answer(connection, session, event, found)
            except RemoteProtocolError as error:
                found.early = True
                _say(connection, found, Error.of(error))
                return found
    raise AssertionError("a stream that has ended is a connection that is closed")


def _answer(connection: ServerConnection, session: AgentSession | None, event: Any, found: Expected) -> None:
    assert session is not None or isinstance(event, Ping | Pong)
    if isinstance(event, Hello):
        _say(connection, found, Welcome("", "fuzz", connection.limits))
    elif isinstance(event, Ping):
        _say(connection, found, Pong(event.nonce))
    elif session is None or isinstance(event, Pong):
        pass
    elif isinstance(event, Metrics):
        session.answer(event)
    else:
        answer = session.init if isinstance(event, Init) else session.reset
        _say(connection, found, (answer if isinstance(event, (Init, Reset)) else session.step)(event))


def _session(connection: ServerConnection, hello: Hello) -> AgentSession:
    bridge = OfflineClient()
    context = AgentContext(
        hello.observation_space,
        hello.action_space,
        hello.environments,
        actors=tuple(range(hello.environments)),
        seed=0,
        exploit=hello.mode == Mode.EXPLOIT,
        parameters=bridge,
        metrics=bridge.metrics,
    )
    return AgentSession(connection, Agent(Config(path="fuzz"), context), bridge.metrics)


def _say(connection: ServerConnection, found: Expected, message: Any) -> None:
    connection.send(message)
    found.answers.append(message)


def at_a_client(case: Case, number: int) -> int:
    """Frames of a server, at a client that says what it would: how many of them it read."""
    talks = [talk for talk in golden(Sender.CLIENT) if not any(isinstance(said, bytes) for said in talk.said)]
    talk = talks[number % len(talks)]
    connection, read = ClientConnection(case.codec), 0
    mine = iter(_messages(talk.said))
    for data in case.frames:
        for message in mine:
            try:
                connection.send(message)
            except LocalProtocolError:  # what came has changed what may be said
                break
            except RemoteProtocolError:  # what came was an answer to nothing
                return read
            if not isinstance(message, (Ping, Pong, Metrics)):
                break
        connection.receive_data(data)
        while True:
            try:
                event = connection.next_event()
            except RemoteProtocolError as error:
                assert 0 < len(error.message) <= 2000
                return read + 1
            if event is NEED_DATA or isinstance(event, ConnectionClosed):
                break
            read += 1
    return read


def _messages(said: Any) -> list[Message]:
    from relaax.rlx.wire.decoding import from_wire

    return [from_wire(wire) for wire in said]
