"""One TCP connection to an RLX server: a socket and the protocol's state machine."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import time
from typing import TYPE_CHECKING

from relaax import rlx
from relaax.client.connection.failure import ConnectionInterrupted, TrainingFinished
from relaax.libraries import explained
from relaax.rlx import NEED_DATA, Actions
from relaax.rlx.connection import DEFAULT_MAX_FRAME_BYTES, SPEAKS_GRPC
from relaax.rlx.wire.framing import is_http2
from relaax.tls import NO_TLS, reason_of

if TYPE_CHECKING:
    from relaax.client.connection.websocket import ClientWebSocket

RECEIVE_BUFFER_BYTES = 1 << 16
LEAVE_SECONDS = 0.5
PLAIN = "leave out --tls, tls=True and RELAAX_TLS to connect without it"
_SLICE_SECONDS = 1.0
_CLOSED = "the server closed the connection"
_ANY_TIME = (rlx.Metrics, rlx.Ping, rlx.Pong)


class ClientWire:
    """Send messages to one server and receive its messages, in one thread. Every failure of the connection is a
    `ConnectionInterrupted`.

    The server may take as long as it likes to answer as long as it is heard of: `silence` is the time in seconds after
    which a connection without any byte counts as lost (a server sends pings while it is busy). A message that is sent
    must be taken in within the same time.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        codec: str,
        connect_timeout: float,
        silence: float,
        tls: ssl.SSLContext | None = None,
        path: str | None = None,
    ) -> None:
        """`path`: of a WebSocket; None for none."""
        self._connection = rlx.ClientConnection(codec=codec)
        self._buffer = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self._answered = False
        self._broken = False
        self._pings = 0  # in flight
        try:
            connected = socket.create_connection((host, port), timeout=connect_timeout)
        except socket.gaierror as error:
            raise ConnectionInterrupted(f"cannot find the host {host!r} ({error.strerror})") from error
        except UnicodeError as error:  # from the encoding of names: no name server was asked
            raise ConnectionInterrupted(f"{host!r} cannot be the name of a host", retryable=False) from error
        except OSError as error:
            there = ": is an RLX server running there?" if isinstance(error, ConnectionRefusedError) else ""
            raise ConnectionInterrupted(
                f"cannot connect to {host}:{port} ({error.strerror or error}){there}"
            ) from error
        self._socket = connected if tls is None else _secured(connected, tls, host, port)
        self._arrivals = select.poll()
        self._arrivals.register(self._socket, select.POLLIN)
        self._silence = silence
        _bound(self._socket, silence)
        _tune(self._socket, silence)
        self._websocket: ClientWebSocket | None = None
        if path is not None:
            self._upgrade(host, port, path, tls is not None)

    def _upgrade(self, host: str, port: int, path: str, secure: bool) -> None:
        """Ask for a WebSocket. Raises ConnectionInterrupted."""
        with explained("websocket"):
            from relaax.client.connection.websocket import ClientWebSocket
        websocket = ClientWebSocket(host, port, path, secure)
        try:
            self._send(websocket.to_send())
            while not websocket.open:
                received = self._received()
                if is_http2(received):
                    raise ConnectionInterrupted(f"no WebSocket: {SPEAKS_GRPC}", retryable=False)
                said = websocket.answered(received)
                if said:
                    self._connection.receive_data(said)
        except OSError as error:
            self.close()
            raise ConnectionInterrupted(_broke(error)) from error
        except ConnectionInterrupted:
            self.close()
            raise
        self._websocket = websocket

    def tell(self, *messages: rlx.ClientMessage) -> None:
        """Send messages in one write, without waiting for an answer.

        Messages that have arrived are read before an init, a step or a reset: none may follow the server's last one.
        Raises rlx.LocalProtocolError before anything is sent, ConnectionInterrupted and TrainingFinished.
        """
        send = self._connection.send
        if not self._broken and type(messages[-1]) not in _ANY_TIME:
            self._look()
        try:
            data = send(messages[0]) if len(messages) == 1 else b"".join([send(message) for message in messages])
        except rlx.RemoteProtocolError as error:  # an answer that nobody asked for lies there
            raise self._broke_protocol(error) from error
        self._pings += type(messages[0]) is rlx.Ping
        try:
            self._send(data if self._websocket is None else self._websocket.sealed(data))
        except OSError as error:
            self._last_words()
            raise ConnectionInterrupted(_broke(error)) from error

    def _look(self) -> None:
        """Read what has arrived, without waiting. Raises ConnectionInterrupted and TrainingFinished."""
        connection = self._connection
        while True:
            while connection.buffered or connection.ended:
                try:
                    event = connection.next_event()
                except rlx.RemoteProtocolError as error:
                    raise self._broke_protocol(error) from error
                if event is NEED_DATA:
                    break
                if not self._is_aside(event):
                    raise _farewell(event)
            data = b"" if self._websocket_is_over() else self._received_now()
            if data is None:
                return
            self._feed(data)

    def _is_aside(self, event: object) -> bool:
        """Return whether the event is a ping, which is answered, a pong or, at the end, a late answer."""
        if isinstance(event, rlx.Ping) and not self._broken:
            self.tell(rlx.Pong(event.nonce))
        late = self._broken and isinstance(event, rlx.Actions | rlx.EpisodeReturns)
        return late or isinstance(event, rlx.Ping | rlx.Pong)

    def hear(self) -> rlx.ServerMessage:
        """Return the server's next message, except pings and unrequested pongs.

        Raises ConnectionInterrupted and TrainingFinished.
        """
        connection = self._connection
        if not connection.buffered:  # usual: nothing came after the last answer
            self._read()
        while True:
            try:
                event = connection.next_event()
            except rlx.RemoteProtocolError as error:
                raise self._broke_protocol(error) from error
            if type(event) is Actions:  # what comes most
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
            elif not self._is_aside(event):
                raise _farewell(event)

    def _broke_protocol(self, error: rlx.RemoteProtocolError) -> ConnectionInterrupted:
        # Garbage at once comes from something that is no RLX server; later on, from a wire that went bad.
        question = ": is it an RLX server?" if self._connection.welcome is None else ""
        why = str(error) if error.message == SPEAKS_GRPC else f"the server broke the protocol: {error}{question}"
        return ConnectionInterrupted(why, retryable=self._answered)

    def leave(self, last: rlx.ClientMessage | None = None) -> None:
        """Say goodbye and close: half-close and drain for a moment, so that the last words are not lost."""
        with contextlib.suppress(OSError, rlx.ProtocolError, ConnectionInterrupted, TrainingFinished):
            self._hurry()
            self._look()
            self.tell(*([last] if last else []), rlx.Bye("done"))
            if self._websocket is not None:
                self._send(self._websocket.farewell())
            self._socket.shutdown(socket.SHUT_WR)
            until = time.monotonic() + LEAVE_SECONDS
            while self._socket.recv_into(self._buffer) and time.monotonic() < until:
                pass
        self.close()

    def close(self) -> None:
        """Close without a goodbye. May be called again."""
        self._socket.close()

    def _read(self) -> None:
        """Take in some bytes, once there are any. Raises ConnectionInterrupted as `_received`."""
        self._feed(b"" if self._websocket_is_over() else self._received())

    def _websocket_is_over(self) -> bool:
        websocket = self._websocket
        return websocket is not None and (websocket.ended or websocket.broken is not None)

    def _feed(self, data: memoryview | bytes) -> None:
        """Pass received bytes to the protocol; empty for the end of the stream. Raises ConnectionInterrupted."""
        websocket = self._websocket
        if websocket is not None and websocket.broken is not None:
            raise self._broke_protocol(websocket.broken)
        if websocket is None or not data:
            self._connection.receive_data(data)
            return
        welcome = self._connection.welcome
        limit = rlx.HANDSHAKE_FRAME_BYTES if welcome is None else welcome.limits.max_frame_bytes
        said = websocket.received(data, min(limit, DEFAULT_MAX_FRAME_BYTES))
        if own := websocket.to_send():
            with contextlib.suppress(OSError):  # which the next read notices
                self._send(own)
        if said:
            self._connection.receive_data(said)

    def _received_now(self) -> memoryview | None:
        """Return the bytes that have arrived, or None. Raises ConnectionInterrupted."""
        wire = self._socket
        if not isinstance(wire, ssl.SSLSocket):
            return self._received() if self._arrivals.poll(0) else None
        if not self._arrivals.poll(0) and not wire.pending():
            return None
        wire.settimeout(0)  # what has arrived may be a part of a record
        try:
            return self._buffer[: wire.recv_into(self._buffer)]
        except ssl.SSLWantReadError:
            return None
        except OSError as error:
            raise ConnectionInterrupted(_broke(error)) from error
        finally:
            wire.settimeout(self._silence)

    def _received(self) -> memoryview:
        """Return the received bytes, once there are any. Raises ConnectionInterrupted after `silence` without any."""
        until = time.monotonic() + self._silence
        while True:
            try:
                count = self._socket.recv_into(self._buffer)
                break
            except BlockingIOError as error:  # a slice is over
                if time.monotonic() < until:
                    continue
                raise ConnectionInterrupted(f"the server said nothing for {self._silence:g} s") from error
            except TimeoutError as error:
                raise ConnectionInterrupted(f"the server said nothing for {self._silence:g} s") from error
            except OSError as error:
                raise ConnectionInterrupted(_broke(error)) from error
        return self._buffer[:count]

    def _send(self, data: bytes) -> None:
        """Send all of it. Raises OSError, also if nothing more of it could be sent for `silence`."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:  # a slice is over
            sent = 0
        if sent == len(data):
            return
        until, rest = time.monotonic() + self._silence, memoryview(data)[sent:]
        while rest:
            if time.monotonic() >= until:
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._socket.send(rest) :]
                until = time.monotonic() + self._silence

    def _last_words(self) -> None:
        """Look whether the server said why it closed, and raise that."""
        self._hurry()
        with contextlib.suppress(OSError):
            while True:
                try:
                    self.hear()
                except ConnectionInterrupted as error:
                    if error.code is None:  # the server did not say: what the caller saw is as good
                        return
                    raise

    def _hurry(self) -> None:
        """Set short timeouts from now on."""
        self._broken = True
        self._silence = LEAVE_SECONDS
        self._socket.settimeout(LEAVE_SECONDS)


def _broke(error: OSError) -> str:
    timed_out = isinstance(error, TimeoutError | BlockingIOError)
    return f"the connection broke ({'timed out' if timed_out else error.strerror or error})"


def _bound(connected: socket.socket, seconds: float) -> None:
    """Make every read and write fail that takes longer: with TimeoutError, or with BlockingIOError after a part of it.

    If the kernel does the waiting, each of them is one system call; Python's own timeouts ask it first whether there
    is anything to read, or room to write, and let other threads of this process come in between. The kernel waits in
    slices because a signal has Python begin such a wait anew: no deadline is kept while more than one comes in a slice.
    """
    connected.settimeout(seconds)
    if os.name == "posix" and not isinstance(connected, ssl.SSLSocket):
        part = min(_SLICE_SECONDS, seconds / 4)
        span = struct.pack("@ll", int(part), max(1, int(part % 1 * 1e6)))  # nothing at all would mean for ever
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
            connected.settimeout(None)


def _secured(connected: socket.socket, context: ssl.SSLContext, host: str, port: int) -> ssl.SSLSocket:
    """Return the same connection over TLS, or closed. Raises ConnectionInterrupted."""
    try:
        return context.wrap_socket(connected, server_hostname=host)
    except (OSError, ValueError) as error:  # ValueError: a name that no certificate can have
        connected.close()
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        if why is not None:
            way_out = f"; {PLAIN}" if why == NO_TLS else ""
            raise ConnectionInterrupted(f"no TLS with {host}:{port}: {why}{way_out}", retryable=False) from error
        raise ConnectionInterrupted(f"no TLS with {host}:{port} ({error})") from error


def _farewell(event: object) -> Exception:
    """Return what the last message of a server means to its client."""
    match event:
        case rlx.TrainingFinished(message=message, global_step=global_step):
            return TrainingFinished(message, global_step)
        case rlx.Error(code=code, message=message, retryable=retryable, retry_after_seconds=wait):
            return ConnectionInterrupted(message, retryable=bool(retryable), retry_after=wait, code=code)
        case rlx.Bye(reason=reason):
            return ConnectionInterrupted(f"the server left ({reason})" if reason else "the server left")
        case _:
            return ConnectionInterrupted(_CLOSED)


def _tune(connected: socket.socket, silence: float) -> None:
    """No delay for small messages; a peer that is gone is noticed within about `silence` seconds."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, int(silence))
    for name, value in (
        ("TCP_KEEPIDLE", max(1, seconds // 2)),
        ("TCP_KEEPINTVL", max(1, seconds // 6)),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        if hasattr(socket, name):  # Linux has all four; others some
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
