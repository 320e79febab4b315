"""One end of an RLX connection, without the wire: bytes in, messages out, and back.

    connection.receive_data(bytes_from_the_peer)           # b"" for the end of the stream
    while (event := connection.next_event()) is not NEED_DATA:
        ...                                                # a message, or ConnectionClosed: the last event
    bytes_for_the_peer = connection.send(message)

Nothing here waits, sleeps, or knows a socket. A connection belongs to one thread.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

from relaax.rlx.checks import Checker, check_error
from relaax.rlx.errors import ErrorCode, LocalProtocolError, ProtocolError, RemoteProtocolError
from relaax.rlx.handshake import check_hello, check_welcome, limits_for
from relaax.rlx.messages import Error, Hello, Limits, Mask, Message, Welcome
from relaax.rlx.transitions import TRANSITIONS, Sender, State, allowed
from relaax.rlx.wire.codecs import AnotherCodec, Codec, codec_named, codec_of
from relaax.rlx.wire.framing import HANDSHAKE_FRAME_BYTES, FrameReader, framed, is_http2

DEFAULT_MAX_FRAME_BYTES = Limits().max_frame_bytes
SPEAKS_GRPC = (
    "this port speaks gRPC, like the ports of parameter and replay servers: connect to an RLX server "
    "(relaax-rlx-server.bind, port 7001 by default)"
)
"""The error for a server that begins as a gRPC server does."""


class NeedData(enum.Enum):
    """The type of `NEED_DATA`."""

    NEED_DATA = "NEED_DATA"


NEED_DATA = NeedData.NEED_DATA


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """No further message will come. `orderly` is false if the stream ended without a bye, an error or a finish."""

    orderly: bool = True


Event = Message | NeedData | ConnectionClosed

_AGREEING = frozenset({Hello, Welcome, Error})  # messages that are not checked against an agreement


class _Connection:
    """The base of both ends."""

    _ours: Sender
    _theirs: Sender

    def __init__(self, max_frame_bytes: int, handshake_limit: int) -> None:
        self._state = State.AWAIT_HELLO
        self._codec: Codec | None = None
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(handshake_limit)
        self._ended = False  # the peer's stream
        self._orderly = True
        self._failure: RemoteProtocolError | None = None
        self._checker: Checker | None = None
        self._hello: Hello | None = None
        self._welcome: Welcome | None = None

    @property
    def state(self) -> State:
        """The state of the conversation, as this side knows it."""
        return self._state

    @property
    def between_episodes(self) -> Mask | None:
        """The environments that are between two episodes after the last message; None if there are none."""
        return None if self._checker is None else self._checker.between_episodes

    @property
    def hello(self) -> Hello | None:
        """The client's hello, once it was sent."""
        return self._hello

    @property
    def welcome(self) -> Welcome | None:
        """The server's answer to it, once it was sent."""
        return self._welcome

    @property
    def ended(self) -> bool:
        """Whether the peer's stream has ended, as far as it was received."""
        return self._ended

    @property
    def codec(self) -> str | None:
        """The codec: "protobuf" or "json"; None on a server that has not received the first byte of the first frame."""
        return self._codec.name if self._codec else None

    @property
    def buffered(self) -> int:
        """The received bytes that belong to no event yet: at most one frame of the limit, and the last piece fed."""
        return len(self._reader)

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take in bytes of the peer; no bytes mean that its stream has ended. What follows the last event is dropped.

        Raises LocalProtocolError if a whole frame waits and `next_event` was not asked for it.
        """
        if len(data) == 0:
            self._ended = True
        elif self._state not in (State.CLOSED, State.ERROR):
            self._reader.feed(data)

    def next_event(self) -> Event:
        """Return the next message of the peer, NEED_DATA if there is none yet, ConnectionClosed if none will come.

        Raises RemoteProtocolError if the peer broke the protocol. From then on only `Error` (server) or `Bye`
        (client) may be sent, and every further call raises the same.
        """
        if self._failure is not None:
            raise self._failure
        if self._state is State.CLOSED:
            return ConnectionClosed(self._orderly)
        try:
            if self._codec is None:
                self._learn_codec()
            payload = self._reader.next_frame()
            if payload is None:
                return self._close() if self._ended else NEED_DATA
            if self._codec is None:  # a client never gets here: it chose
                raise ProtocolError(ErrorCode.MALFORMED, "a frame before any codec")
            message = self._codec.decode(payload, self._theirs)
            kind = type(message)
            after = TRANSITIONS.get((self._state, self._theirs, kind))
            if after is None:
                raise self._unexpected(message, self._theirs)
            if self._checker is not None and kind not in _AGREEING:
                self._checker.check(message)
            else:
                self._check_agreement(message)
        except AnotherCodec:
            return self._close()
        except ProtocolError as error:
            raise self._failed(error) from None
        self._said(message, kind, after)
        return message

    def send(self, message: Message) -> bytes:
        """Return the frame of `message`.

        Raises LocalProtocolError, and changes nothing, if this state does not allow the message or it does not fit
        what was agreed.
        Raises RemoteProtocolError, as `next_event`, if the peer has not waited for its turn: a whole frame
        was received that this state does not allow, and this message ends the state.
        """
        try:
            kind = type(message)
            after = TRANSITIONS.get((self._state, self._ours, kind))
            if after is None:
                raise self._unexpected(message, self._ours)
            if self._checker is not None and kind not in _AGREEING:
                self._checker.check(message)
            else:
                self._check_agreement(message)
            codec = self._codec or codec_of(None)
            limit = self._max_frame_bytes if self._welcome is not None else HANDSHAKE_FRAME_BYTES
            pieces, length = codec.pieces(message, self._ours)
            data = framed(pieces, length, limit)
        except ProtocolError as error:
            raise LocalProtocolError(error.code, error.message) from None
        except (TypeError, ValueError, AttributeError) as error:  # a field of a type that it cannot have
            raise LocalProtocolError(ErrorCode.INVALID_VALUE, f"{type(message).__name__}: {error}") from error
        if after is not self._state and after is not State.CLOSED and len(self._reader):
            self._judge_early()
        self._said(message, kind, after)
        return data

    def _judge_early(self) -> None:
        """Check the frames that wait to be read, by the state in which they were received."""
        assert self._codec is not None, "the hello was said in one"
        try:
            for payload in self._reader.waiting():
                message = self._codec.decode(payload, self._theirs)
                after = TRANSITIONS.get((self._state, self._theirs, type(message)))
                if after is None:
                    raise self._unexpected(message, self._theirs)
                if after is State.CLOSED:
                    return  # nothing follows
        except AnotherCodec:
            return  # the connection is lost
        except ProtocolError as error:
            raise self._failed(error) from None

    def _failed(self, error: ProtocolError) -> RemoteProtocolError:
        self._state = State.ERROR
        self._reader.clear()
        self._failure = RemoteProtocolError(error.code, error.message)
        return self._failure

    def _learn_codec(self) -> None:
        """Set the codec from the first byte received, on the server. A client has chosen it."""

    def _close(self) -> ConnectionClosed:
        self._state = State.CLOSED
        self._orderly = False
        self._reader.clear()
        return ConnectionClosed(self._orderly)

    def _unexpected(self, message: Message, sender: Sender) -> ProtocolError:
        names = ", ".join(kind.__name__ for kind in allowed(self._state, sender)) or "nothing"
        return ProtocolError(
            ErrorCode.UNEXPECTED_MESSAGE,
            f"{type(message).__name__} from the {sender.value} in state {self._state.value}; allowed there: {names}",
        )

    def _check_agreement(self, message: Message) -> None:
        """Raise ProtocolError if a message of the handshake, or an error, is invalid."""
        if isinstance(message, Hello):
            assert self._codec is not None
            check_hello(message, self._max_frame_bytes, self._codec.name)
        elif isinstance(message, Welcome):
            assert self._hello is not None and self._codec is not None
            check_welcome(message, self._hello, self._codec.name)
        elif isinstance(message, Error):
            check_error(message)

    def _said(self, message: Message, kind: type[Message], after: State) -> None:
        self._state = after
        if kind not in _AGREEING:
            if self._checker is not None:
                self._checker.commit()
        elif isinstance(message, Hello):
            self._hello = message
            self._checker = Checker(message)
            if self._codec is not None:  # always: this very message was written in one
                self._codec.agree(message)
        elif isinstance(message, Welcome):
            self._welcome = message
            self._agree(message.limits)
        if after is State.CLOSED:
            self._reader.clear()

    def _agree(self, limits: Limits) -> None:
        self._max_frame_bytes = min(self._max_frame_bytes, limits.max_frame_bytes)
        self._reader.max_frame_bytes = self._max_frame_bytes
        if self._checker is not None:
            self._checker.limits = limits


class ClientConnection(_Connection):
    """The client's end. `max_frame_bytes` is this side's own limit, whatever the server's welcome allows."""

    _ours, _theirs = Sender.CLIENT, Sender.SERVER

    def __init__(self, codec: str = "protobuf", max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes, HANDSHAKE_FRAME_BYTES)
        self._codec = codec_named(codec)

    def _close(self) -> ConnectionClosed:
        if self._welcome is None and is_http2(self._reader.begin()):
            raise ProtocolError(ErrorCode.MALFORMED, SPEAKS_GRPC)
        return super()._close()


class ServerConnection(_Connection):
    """The server's end.

    `limits`: the most that any client is granted. `handshake_limit`: the longest frame before the welcome, in bytes.
    """

    _ours, _theirs = Sender.SERVER, Sender.CLIENT

    def __init__(self, limits: Limits | None = None, handshake_limit: int = HANDSHAKE_FRAME_BYTES) -> None:
        self._limits = limits or Limits()
        super().__init__(self._limits.max_frame_bytes, handshake_limit)

    @property
    def limits(self) -> Limits:
        """The limits to announce in the welcome: after the hello, frames no larger than its spaces can need."""
        return self._limits if self._hello is None else limits_for(self._hello, self._limits)

    def forget_token(self) -> Hello:
        """Return the hello without its token, which nothing here holds any more."""
        assert self._hello is not None, "the client has not introduced itself"
        self._hello = dataclasses.replace(self._hello, token="")
        return self._hello

    def _learn_codec(self) -> None:
        if (first := self._reader.first_byte()) is not None:
            self._codec = codec_of(first)
