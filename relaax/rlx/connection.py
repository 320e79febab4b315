"""One end of an RLX connection, without I/O: it turns received bytes into messages, and messages into bytes.

    connection.receive_data(bytes_from_the_peer)           # b"" at the end of the stream
    while (event := connection.next_event()) is not NEED_DATA:
        ...                                                # a message, or ConnectionClosed, the last event
    bytes_for_the_peer = connection.send(message)

The methods never block. A connection must be used by one thread only.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

from relaax.rlx.checks import Checker, check_error
from relaax.rlx.errors import ErrorCode, LocalProtocolError, ProtocolError, RemoteProtocolError
from relaax.rlx.handshake import check_hello, check_welcome, limits_for, longest_welcome
from relaax.rlx.messages import Error, Hello, Limits, Mask, Message, Welcome
from relaax.rlx.transitions import TRANSITIONS, Sender, State, allowed
from relaax.rlx.wire.codecs import Codec, CodecMismatch, codec_named, codec_of
from relaax.rlx.wire.framing import HANDSHAKE_FRAME_BYTES, FrameReader, framed, is_http2

DEFAULT_MAX_FRAME_BYTES = Limits().max_frame_bytes
GRPC_PORT_ERROR = (
    "this port speaks gRPC, like the ports of parameter and replay servers: connect to an RLX server "
    "(relaax-rlx-server.bind, port 7001 by default)"
)
"""The error for a server whose first bytes are those of gRPC. The clients of protocol/clients use the same text."""


class NeedData(enum.Enum):
    """The type of `NEED_DATA`."""

    NEED_DATA = "NEED_DATA"


NEED_DATA = NeedData.NEED_DATA


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The last event. `orderly` is false if the stream ended without a bye, an error or a training_finished."""

    orderly: bool = True


Event = Message | NeedData | ConnectionClosed

_HANDSHAKE_KINDS = frozenset({Hello, Welcome, Error})  # messages that `Checker` does not check


class _Connection:
    """The base class of both ends."""

    _own_role: Sender
    _peer_role: Sender

    def __init__(self, max_frame_bytes: int, handshake_limit: int) -> None:
        self._state = State.AWAIT_HELLO
        self._codec: Codec | None = None
        self._max_frame_bytes = max_frame_bytes
        self._handshake_frame_bytes = HANDSHAKE_FRAME_BYTES  # of the hello, then of the welcome
        self._reader = FrameReader(handshake_limit)
        self._ended = False  # whether the peer has ended its stream
        self._orderly = True
        self._failure: RemoteProtocolError | None = None
        self._checker: Checker | None = None
        self._hello: Hello | None = None
        self._welcome: Welcome | None = None

    @property
    def state(self) -> State:
        """The state of the connection, derived from the messages that this end has sent and received."""
        return self._state

    @property
    def between_episodes(self) -> Mask | None:
        """Mask of the environments between two episodes, bool [N]; None if there are none.

        Their episodes ended (NEXT_STEP, or idle in that step), or they were idle in init, and none began since.
        """
        return None if self._checker is None else self._checker.between_episodes

    @property
    def hello(self) -> Hello | None:
        """The client's hello; None before it."""
        return self._hello

    @property
    def welcome(self) -> Welcome | None:
        """The server's welcome; None before it."""
        return self._welcome

    @property
    def ended(self) -> bool:
        """Whether the end of the peer's stream was received."""
        return self._ended

    @property
    def codec(self) -> str | None:
        """The codec, "protobuf" or "json"; None on a server before the first byte of the first payload."""
        return self._codec.name if self._codec else None

    @property
    def buffered(self) -> int:
        """The number of received bytes whose events `next_event` has not yet returned.

        This is at most the length of the longest allowed frame plus that of the data received last.
        """
        return len(self._reader)

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes received from the peer; b"" means that its stream ended. Bytes after the last event are dropped.

        Raises LocalProtocolError if the buffer already holds as many bytes as the longest allowed frame has: call
        `next_event` first.
        """
        if len(data) == 0:
            self._ended = True
        elif self._state not in (State.CLOSED, State.ERROR):
            self._reader.feed(data)

    def next_event(self) -> Event:
        """Return the peer's next message, NEED_DATA if it is incomplete, or ConnectionClosed after the last message.

        Raises RemoteProtocolError if the peer broke the protocol. After that, only `Error` (server) or `Bye` (client)
        may be sent, and every call raises the same error.
        """
        if self._failure is not None:
            raise self._failure
        if self._state is State.CLOSED:
            return ConnectionClosed(self._orderly)
        try:
            if self._codec is None:
                self._detect_codec()
            payload = self._reader.next_frame()
            if payload is None:
                return self._close() if self._ended else NEED_DATA
            if self._codec is None:  # never on a client, whose codec is set from the start
                raise ProtocolError(ErrorCode.MALFORMED, "a frame came before the codec was detected")
            message = self._codec.decode(payload, self._peer_role)
            kind = type(message)
            after = TRANSITIONS.get((self._state, self._peer_role, kind))
            if after is None:
                raise self._unexpected(message, self._peer_role)
            if self._checker is not None and kind not in _HANDSHAKE_KINDS:
                self._checker.check(message)
            else:
                self._check_handshake(message)
        except CodecMismatch:
            return self._close()
        except ProtocolError as error:
            raise self._fail(error) from None
        self._apply(message, kind, after)
        return message

    def send(self, message: Message) -> bytes:
        """Return the frame of `message`.

        Raises LocalProtocolError, and changes nothing, if this state does not allow the message or if it does not fit
        the handshake.
        If `message` changes the state, the old state must allow every frame that is already buffered. Otherwise the
        peer did not wait for its turn, and RemoteProtocolError is raised, as by `next_event`.
        """
        try:
            kind = type(message)
            after = TRANSITIONS.get((self._state, self._own_role, kind))
            if after is None:
                raise self._unexpected(message, self._own_role)
            if self._checker is not None and kind not in _HANDSHAKE_KINDS:
                self._checker.check(message)
            else:
                self._check_handshake(message)
            codec = self._codec or codec_of(None)
            limit = self._max_frame_bytes if self._welcome is not None else self._handshake_frame_bytes
            pieces, length = codec.pieces(message, self._own_role)
            data = framed(pieces, length, limit)
        except ProtocolError as error:
            raise LocalProtocolError(error.code, error.message) from None
        except (TypeError, ValueError, AttributeError) as error:  # a field of a wrong type
            raise LocalProtocolError(ErrorCode.INVALID_VALUE, f"{type(message).__name__}: {error}") from error
        if after is not self._state and after is not State.CLOSED and len(self._reader):
            self._check_early_frames()
        self._apply(message, kind, after)
        return data

    def _check_early_frames(self) -> None:
        """Check the buffered frames against the state in which they were received."""
        assert self._codec is not None, "the codec is set with the first frame"
        try:
            for payload in self._reader.pending_frames():
                message = self._codec.decode(payload, self._peer_role)
                after = TRANSITIONS.get((self._state, self._peer_role, type(message)))
                if after is None:
                    raise self._unexpected(message, self._peer_role)
                if after is State.CLOSED:
                    return  # frames after the last message are dropped
        except CodecMismatch:
            return  # `next_event` reports the connection as lost
        except ProtocolError as error:
            raise self._fail(error) from None

    def _fail(self, error: ProtocolError) -> RemoteProtocolError:
        self._state = State.ERROR
        self._reader.clear()
        self._failure = RemoteProtocolError(error.code, error.message)
        return self._failure

    def _detect_codec(self) -> None:
        """Set the codec from the first payload byte. Only a server does this; a client chooses its codec."""

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

    def _check_handshake(self, message: Message) -> None:
        """Raise ProtocolError if a message of the handshake, or an error, is invalid."""
        if isinstance(message, Hello):
            assert self._codec is not None
            check_hello(message, self._max_frame_bytes, self._codec.name)
        elif isinstance(message, Welcome):
            assert self._hello is not None and self._codec is not None
            check_welcome(message, self._hello, self._codec.name)
        elif isinstance(message, Error):
            check_error(message)

    def _apply(self, message: Message, kind: type[Message], after: State) -> None:
        self._state = after
        if kind not in _HANDSHAKE_KINDS:
            if self._checker is not None:
                self._checker.commit()
        elif isinstance(message, Hello):
            self._hello = message
            self._handshake_frame_bytes = longest_welcome(message)
            if self._own_role is Sender.CLIENT:
                self._reader.max_frame_bytes = self._handshake_frame_bytes
            self._checker = Checker(message)
            if self._codec is not None:  # always: the hello itself was encoded with it
                self._codec.configure(message)
        elif isinstance(message, Welcome):
            self._welcome = message
            self._admit(message)
        if after is State.CLOSED:
            self._reader.clear()

    def _admit(self, welcome: Welcome) -> None:
        self._max_frame_bytes = min(self._max_frame_bytes, welcome.limits.max_frame_bytes)
        self._reader.max_frame_bytes = self._max_frame_bytes
        if self._checker is not None:
            self._checker.admit(welcome)


class ClientConnection(_Connection):
    """The client's end. `max_frame_bytes`: the client's own limit, which applies if the welcome's limit is higher."""

    _own_role, _peer_role = Sender.CLIENT, Sender.SERVER

    def __init__(self, codec: str = "protobuf", max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes, HANDSHAKE_FRAME_BYTES)
        self._codec = codec_named(codec)

    def _close(self) -> ConnectionClosed:
        if self._welcome is None and is_http2(self._reader.first_bytes()):
            raise ProtocolError(ErrorCode.MALFORMED, GRPC_PORT_ERROR)
        return super()._close()


class ServerConnection(_Connection):
    """The server's end.

    `limits`: upper bounds of the welcome's limits. `handshake_limit`: the longest frame before the welcome, in bytes.
    """

    _own_role, _peer_role = Sender.SERVER, Sender.CLIENT

    def __init__(self, limits: Limits | None = None, handshake_limit: int = HANDSHAKE_FRAME_BYTES) -> None:
        self._limits = limits or Limits()
        super().__init__(self._limits.max_frame_bytes, handshake_limit)

    @property
    def limits(self) -> Limits:
        """The limits for the welcome. After the hello, `max_frame_bytes` is reduced to what the client can need."""
        return self._limits if self._hello is None else limits_for(self._hello, self._limits)

    def remove_token(self) -> Hello:
        """Remove the token from the stored hello, and return the hello without it."""
        assert self._hello is not None, "the hello was not received yet"
        self._hello = dataclasses.replace(self._hello, token="")
        return self._hello

    def _detect_codec(self) -> None:
        if (first := self._reader.first_byte()) is not None:
            self._codec = codec_of(first)
