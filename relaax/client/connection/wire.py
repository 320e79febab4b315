"""One TCP connection to an RLX server: a socket and the protocol's state machine."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from relaax import rlx
from relaax.client.connection.failure import ConnectionInterrupted, TrainingFinished
from relaax.libraries import explained
from relaax.rlx import NEED_DATA, Actions
from relaax.rlx.connection import DEFAULT_MAX_FRAME_BYTES, GRPC_PORT_ERROR
from relaax.rlx.spaces import without_bounds
from relaax.rlx.wire.framing import is_http2
from relaax.tls import NO_TLS, reason_of

if TYPE_CHECKING:
    from relaax.client.connection.websocket import ClientWebSocket

RECEIVE_BUFFER_BYTES = 1 << 16
CLOSE_SECONDS = 0.5
PLAIN = "leave out --tls, tls=True and RELAAX_TLS to connect without it"
_SLICE_SECONDS = 1.0
_CLOSED = "the server closed the connection"
_ANY_TIME = (rlx.Metrics, rlx.Ping, rlx.Pong)


class ClientWire:
    """A connection to one server, for one thread. Every failure of the connection raises `ConnectionInterrupted`.

    A server may need any time to answer, but it sends pings while it is busy. If no byte arrives for `response_timeout`
    seconds, the connection counts as lost. The same holds if no byte can be sent for this time.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        codec: str,
        connect_timeout: float,
        response_timeout: float,
        tls: ssl.SSLContext | None = None,
        path: str | None = None,
    ) -> None:
        """`path`: path of a WebSocket; None for plain TCP."""
        self._connection = rlx.ClientConnection(codec=codec)
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._answered = False
        self._broken = False
        self._pings = 0  # in flight
        try:
            connected = socket.create_connection((host, port), timeout=connect_timeout)
        except socket.gaierror as error:
            raise ConnectionInterrupted(f"cannot find the host {host!r} ({error.strerror})") from error
        except UnicodeError as error:  # from the encoding of the name, before a lookup
            raise ConnectionInterrupted(f"{host!r} is not a valid host name", retryable=False) from error
        except OSError as error:
            there = ": is an RLX server running there?" if isinstance(error, ConnectionRefusedError) else ""
            text = f"cannot connect to {host}:{port} ({error.strerror or error}){there}"
            raise ConnectionInterrupted(text) from error
        self._socket = connected if tls is None else _secured(connected, tls, host, port)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._response_timeout = response_timeout
        _set_timeouts(self._socket, response_timeout)
        _set_options(self._socket, response_timeout)
        self._websocket: ClientWebSocket | None = None
        if path is not None:
            self._upgrade(host, port, path, tls is not None)

    def _upgrade(self, host: str, port: int, path: str, secure: bool) -> None:
        """Open a WebSocket. Raises ConnectionInterrupted."""
        with explained("websocket"):
            from relaax.client.connection.websocket import ClientWebSocket
        websocket = ClientWebSocket(host, port, path, secure)
        try:
            self._send(websocket.to_send())
            while not websocket.open:
                received = self._receive()
                if is_http2(received):
                    raise ConnectionInterrupted(f"no WebSocket: {GRPC_PORT_ERROR}", retryable=False)
                frames = websocket.receive_answer(received)
                if frames:
                    self._connection.receive_data(frames)
        except (OSError, ConnectionInterrupted) as error:
            self.close()
            if isinstance(error, OSError):
                raise ConnectionInterrupted(_break_text(error)) from error
            raise
        self._websocket = websocket

    def send_hello(self, hello: rlx.Hello) -> None:
        """Send a hello, without the bounds of observations if it would be too long. Raises as `send` does."""
        try:
            self.send(hello)
        except rlx.LocalProtocolError as error:
            if error.code is not rlx.ErrorCode.FRAME_TOO_LARGE:
                raise
            shorter = replace(hello, observation_space=without_bounds(hello.observation_space))
            if shorter == hello:
                why = f"the hello is {error.message}: use one bound for all elements"
                raise rlx.LocalProtocolError(error.code, why) from None
            self.send_hello(shorter)

    def send(self, *messages: rlx.ClientMessage) -> None:
        """Send messages in one write, without waiting for an answer.

        Before an init, a step or a reset, all messages that have arrived are read, because the protocol allows no
        message after the server's last one. Raises rlx.LocalProtocolError before it sends bytes, ConnectionInterrupted
        and TrainingFinished.
        """
        send = self._connection.send
        if not self._broken and type(messages[-1]) not in _ANY_TIME:
            self._process_arrived()
        try:
            data = send(messages[0]) if len(messages) == 1 else b"".join([send(message) for message in messages])
        except rlx.RemoteProtocolError as error:  # an unrequested answer has arrived
            raise self._protocol_error(error) from error
        self._pings += type(messages[0]) is rlx.Ping
        try:
            self._send(data if self._websocket is None else self._websocket.to_messages(data))
        except OSError as error:
            self._raise_server_error()
            raise ConnectionInterrupted(_break_text(error)) from error

    def _process_arrived(self) -> None:
        """Read the messages that have arrived, without waiting. Raises ConnectionInterrupted and TrainingFinished."""
        connection = self._connection
        while True:
            while connection.buffered or connection.ended:
                try:
                    event = connection.next_event()
                except rlx.RemoteProtocolError as error:
                    raise self._protocol_error(error) from error
                if event is NEED_DATA:
                    break
                if not self._is_skipped(event):
                    raise _exception_of(event)
            data = b"" if self._websocket_is_over() else self._receive_available()
            if data is None:
                return
            self._process_data(data)

    def _is_skipped(self, event: object) -> bool:
        """Return whether to skip the event: a ping (answered here), a pong or, at the end, a late answer."""
        if isinstance(event, rlx.Ping) and not self._broken:
            self.send(rlx.Pong(event.nonce))
        late = self._broken and isinstance(event, rlx.Actions | rlx.EpisodeReturns)
        return late or isinstance(event, rlx.Ping | rlx.Pong)

    def receive(self) -> rlx.ServerMessage:
        """Return the server's next message, except pings and unrequested pongs.

        Raises ConnectionInterrupted and TrainingFinished.
        """
        connection = self._connection
        if not connection.buffered:  # the usual case: no bytes followed the last answer
            self._read()
        while True:
            try:
                event = connection.next_event()
            except rlx.RemoteProtocolError as error:
                raise self._protocol_error(error) from error
            if type(event) is Actions:  # the most frequent event
                self._answered = True
                return event
            if event is NEED_DATA:
                self._read()
            elif isinstance(event, rlx.EpisodeReturns | rlx.Welcome):
                self._answered = self._answered or isinstance(event, rlx.EpisodeReturns)
                return event
            elif isinstance(event, rlx.Pong) and self._pings:
                self._pings -= 1
                return event
            elif isinstance(event, rlx.ConnectionClosed) and connection.welcome is None:
                kind = "with" if isinstance(self._socket, ssl.SSLSocket) else "without"
                raise ConnectionInterrupted(f"{_CLOSED} before its welcome: is it an RLX server {kind} TLS?")
            elif not self._is_skipped(event):
                raise _exception_of(event)

    def _protocol_error(self, error: rlx.RemoteProtocolError) -> ConnectionInterrupted:
        # Before the first answer, the peer is probably not an RLX server. Later, a new connection may succeed.
        question = ": is it an RLX server?" if self._connection.welcome is None else ""
        why = str(error) if error.message == GRPC_PORT_ERROR else f"the server broke the protocol: {error}{question}"
        return ConnectionInterrupted(why, retryable=self._answered)

    def close_with_bye(self, last: rlx.ClientMessage | None = None) -> None:
        """Send a bye, half-close, drain for at most CLOSE_SECONDS so that the last messages are not lost, and close."""
        with contextlib.suppress(OSError, rlx.ProtocolError, ConnectionInterrupted, TrainingFinished):
            self._shorten_timeouts()
            self._process_arrived()
            self.send(*([last] if last else []), rlx.Bye("done"))
            if self._websocket is not None:
                self._send(self._websocket.close_frame())
            self._socket.shutdown(socket.SHUT_WR)
            until = time.monotonic() + CLOSE_SECONDS
            while self._socket.recv_into(self._buffer) and time.monotonic() < until:
                pass
        self.close()

    def close(self) -> None:
        """Close without a bye. May be called repeatedly."""
        self._socket.close()

    def _read(self) -> None:
        """Wait for bytes and process them. Raises ConnectionInterrupted."""
        self._process_data(b"" if self._websocket_is_over() else self._receive())

    def _websocket_is_over(self) -> bool:
        websocket = self._websocket
        return websocket is not None and (websocket.ended or websocket.broken is not None)

    def _process_data(self, data: memoryview | bytes) -> None:
        """Pass received bytes to the protocol; empty at the end of the stream. Raises ConnectionInterrupted."""
        websocket = self._websocket
        if websocket is not None and websocket.broken is not None:
            raise self._protocol_error(websocket.broken)
        if websocket is None or not data:
            self._connection.receive_data(data)
            return
        welcome = self._connection.welcome
        limit = rlx.HANDSHAKE_FRAME_BYTES if welcome is None else welcome.limits.max_frame_bytes
        frames = websocket.received(data, min(limit, DEFAULT_MAX_FRAME_BYTES))
        if own := websocket.to_send():
            with contextlib.suppress(OSError):  # the next read detects it
                self._send(own)
        if frames:
            self._connection.receive_data(frames)

    def _receive_available(self) -> memoryview | None:
        """Return the bytes that have arrived, or None. Raises ConnectionInterrupted."""
        wire = self._socket
        if not isinstance(wire, ssl.SSLSocket):
            return self._receive() if self._readable.poll(0) else None
        if not self._readable.poll(0) and not wire.pending():
            return None
        wire.settimeout(0)  # only a part of a record may have arrived
        try:
            return self._buffer[: wire.recv_into(self._buffer)]
        except ssl.SSLWantReadError:
            return None
        except OSError as error:
            raise ConnectionInterrupted(_break_text(error)) from error
        finally:
            wire.settimeout(self._response_timeout)

    def _receive(self) -> memoryview:
        """Wait for bytes and return them. Raises ConnectionInterrupted if none arrive within `response_timeout`."""
        until = time.monotonic() + self._response_timeout
        while True:
            try:
                count = self._socket.recv_into(self._buffer)
                break
            except (BlockingIOError, TimeoutError) as error:
                if isinstance(error, BlockingIOError) and time.monotonic() < until:  # a time slice has passed
                    continue
                raise ConnectionInterrupted(f"the server sent nothing for {self._response_timeout:g} s") from error
            except OSError as error:
                raise ConnectionInterrupted(_break_text(error)) from error
        return self._buffer[:count]

    def _send(self, data: bytes) -> None:
        """Send all bytes. Raises OSError, also if none can be sent for `response_timeout` seconds."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:  # a time slice has passed
            sent = 0
        if sent == len(data):
            return
        until, rest = time.monotonic() + self._response_timeout, memoryview(data)[sent:]
        while rest:
            if time.monotonic() >= until:
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._socket.send(rest) :]
                until = time.monotonic() + self._response_timeout

    def _raise_server_error(self) -> None:
        """Raise the error that the server sent before it closed the connection, if any."""
        self._shorten_timeouts()
        with contextlib.suppress(OSError):
            while True:
                try:
                    self.receive()
                except ConnectionInterrupted as error:
                    if error.code is None:  # the server sent no error: the caller raises its own
                        return
                    raise

    def _shorten_timeouts(self) -> None:
        self._broken = True
        self._response_timeout = CLOSE_SECONDS
        self._socket.settimeout(CLOSE_SECONDS)


def _break_text(error: OSError) -> str:
    timed_out = isinstance(error, TimeoutError | BlockingIOError)
    return f"the connection broke ({'timed out' if timed_out else error.strerror or error})"


def _set_timeouts(connected: socket.socket, seconds: float) -> None:
    """Limit the time of each read and write. A call that takes longer raises TimeoutError or BlockingIOError.

    TimeoutError means that `seconds` have passed, BlockingIOError that a slice of them has passed; then the caller
    repeats the call until its deadline.

    If the kernel waits (SO_RCVTIMEO), a read or write is one system call. Python's own timeouts need a poll before it,
    and let other threads of this process run in between. The kernel waits in slices, because Python restarts such a
    wait after a signal: if more than one signal arrives in each slice, no deadline is kept.
    """
    connected.settimeout(seconds)
    if os.name == "posix" and not isinstance(connected, ssl.SSLSocket):
        part = min(_SLICE_SECONDS, seconds / 4)
        span = struct.pack("@ll", int(part), max(1, int(part % 1 * 1e6)))  # 0 would mean no timeout
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
            connected.settimeout(None)


def _secured(connected: socket.socket, context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    """Return the connection over TLS. Raises ConnectionInterrupted, with the connection closed."""
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except (OSError, ValueError) as error:  # ValueError: the name is invalid in certificates
        connected.close()
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        if why is not None:
            way_out = f"; {PLAIN}" if why == NO_TLS else ""
            raise ConnectionInterrupted(f"no TLS with {host}:{port}: {why}{way_out}", retryable=False) from error
        raise ConnectionInterrupted(f"no TLS with {host}:{port} ({error})") from error


def _exception_of(event: object) -> Exception:
    """Return the exception for the last message of a server."""
    match event:
        case rlx.TrainingFinished(message=message, global_step=global_step):
            return TrainingFinished(message, global_step)
        case rlx.Error(code=code, message=message, retryable=retryable, retry_after_seconds=wait):
            return ConnectionInterrupted(message, retryable=bool(retryable), retry_after=wait, code=code)
        case rlx.Bye(reason=reason):
            return ConnectionInterrupted(f"the server sent a bye ({reason})" if reason else "the server sent a bye")
        case _:
            return ConnectionInterrupted(_CLOSED)


def _set_options(connected: socket.socket, response_timeout: float) -> None:
    """Send small messages without delay, and detect an unreachable peer within about `response_timeout` seconds."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, int(response_timeout))
    for name, value in (
        ("TCP_KEEPIDLE", max(1, seconds // 2)),
        ("TCP_KEEPINTVL", max(1, seconds // 6)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        if hasattr(socket, name):  # Linux has all four options, other systems only some
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
