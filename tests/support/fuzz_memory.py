"""The fuzz test's cases without a network: the expected answers of a server, and the reactions of a client.

RemoteProtocolError is the only exception that a case may cause.
"""

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
    Limits,
    LocalProtocolError,
    Message,
    Metrics,
    Mode,
    Ping,
    Pong,
    RemoteProtocolError,
    Sender,
    ServerConnection,
    Welcome,
)
from relaax.rlx.wire.encoding import CAPABILITIES
from relaax.server.rlx_server.workers.episode_parameters import EpisodeParameters
from relaax.server.rlx_server.workers.session import AgentSession
from support.fuzz_algorithm import Agent, Config
from support.fuzz_cases import Case
from support.fuzz_messages import golden_sequences
from support.offline_client import OfflineClientWithParameters

MAX_FRAME_MEGABYTES = 1
LIMITS = Limits(max_frame_bytes=MAX_FRAME_MEGABYTES * 2**20)


@dataclass
class Expected:
    """A server's answers to a case, except pings, and the number of frames that it reads.

    `turns`: for each frame of the case, the number of answers after it was read. `early`: the error occurred while a
    frame was answered, because the next frame had already arrived. If the two frames arrive separately, another error
    is possible.
    """

    answers: list[Message] = field(default_factory=list)
    frames_read: int = 0
    turns: list[int] = field(default_factory=list)
    early: bool = False

    @property
    def error(self) -> ErrorCode | None:
        last = self.answers[-1] if self.answers else None
        return last.code if isinstance(last, Error) else None


def expected_answers(case: Case) -> Expected:
    """Return the answers of a server in memory, with the session and the agent of a worker.

    Raises the exceptions of a worker.
    """
    connection, result = ServerConnection(LIMITS), Expected()
    session: AgentSession | None = None
    for data in (*case.frames, b""):
        connection.receive_data(data)
        assert connection.buffered <= 4 + LIMITS.max_frame_bytes + len(data)
        while True:
            try:
                event: Any = connection.next_event()
            except RemoteProtocolError as error:
                assert 0 < len(error.message) <= 2000
                result.frames_read += 1
                _send(connection, result, Error.of(error))
                return result
            if event is NEED_DATA:
                result.turns.append(len(result.answers))
                break
            if isinstance(event, ConnectionClosed | Bye):
                result.frames_read += isinstance(event, Bye)
                return result
            result.frames_read += 1
            try:
                if isinstance(event, Hello):
                    session = _welcome(connection, event, result)
                else:
                    _answer(connection, session, event, result)
            except RemoteProtocolError as error:
                result.early = True
                _send(connection, result, Error.of(error))
                return result
    raise AssertionError("the stream ended without a ConnectionClosed event")


def _answer(connection: ServerConnection, session: AgentSession | None, event: Any, result: Expected) -> None:
    assert session is not None or isinstance(event, Ping | Pong)
    if isinstance(event, Ping):
        _send(connection, result, Pong(event.nonce))
    elif session is not None and (answer := session.answer(event)) is not None:
        _send(connection, result, answer)


def _welcome(connection: ServerConnection, hello: Hello, result: Expected) -> AgentSession:
    client, parameters = OfflineClientWithParameters(), None
    if hello.environment_parameters:
        parameters = EpisodeParameters(lambda: client.edition, 0, 0, range(hello.environments))
    welcome = Welcome(
        "",
        "fuzz",
        connection.limits,
        parameter_names=parameters.names if parameters else (),
        parameters=parameters.first() if parameters else None,
        **{name: getattr(hello, name) for name in CAPABILITIES},
    )
    _send(connection, result, welcome)
    context = AgentContext(
        hello.observation_space,
        hello.action_space,
        hello.environments,
        actors=tuple(range(hello.environments)),
        seed=0,
        exploit=hello.mode == Mode.EXPLOIT,
        parameters=client,
        metrics=client.metrics,
    )
    return AgentSession(connection, Agent(Config(path="fuzz"), context), client.metrics, parameters=parameters)


def _send(connection: ServerConnection, result: Expected, message: Any) -> None:
    connection.send(message)
    result.answers.append(message)


def frames_read_by_client(case: Case, number: int) -> int:
    """Return how many frames of a server a client in memory reads.

    The client sends a golden sequence: that of the same conversation if `number` is even.
    """
    sequences = [
        each for each in golden_sequences(Sender.CLIENT) if not any(isinstance(one, bytes) for one in each.messages)
    ]
    fitting = [each for each in sequences if each.name == case.name and number % 2 == 0]
    sequence = fitting[0] if fitting else sequences[number % len(sequences)]
    connection, read = ClientConnection(case.codec), 0
    own = iter(_messages(sequence.messages))
    for data in case.frames:
        for message in own:
            try:
                connection.send(message)
            except LocalProtocolError:  # a received message has changed the state
                break
            except RemoteProtocolError:  # an answer without a request was received
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


def _messages(encoded: Any) -> list[Message]:
    from relaax.rlx.wire.decoding import from_wire

    return [from_wire(wire) for wire in encoded]
