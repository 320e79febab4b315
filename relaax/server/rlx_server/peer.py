"""The socket of one connection, with deadlines."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable

from relaax.rlx import (
    NEED_DATA,
    ConnectionClosed,
    Error,
    LocalProtocolError,
    Message,
    Ping,
    ServerConnection,
    ServerMessage,
)
from relaax.rlx.errors import ErrorCode
from relaax.server.rlx_server.tls_layer import RECORDS_BYTES, TlsFailed, TlsLayer
from relaax.server.rlx_server.vanishing import notice_vanishing

_log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
DRAIN_SECONDS = 1.0
DRAIN_BYTES = 4 * 2**20
GOODBYE_SECONDS = 0.1
SEND_SECONDS = 30.0
BEAT_SECONDS = 5.0
LOOK_SECONDS = 0.1
"""So much later than anything else a worker may notice that the server wants it to end, or that a deadline is over."""
_TLS = b"\x16\x03"  # how a client's first record begins: a handshake, version 3


class PeerGone(Exception):
    """The client has closed the connection, or the network has."""


class PeerSilent(Exception):
    """The client said nothing before the deadline."""


class ServerStopping(Exception):
    """The server wants its workers to end."""


class PlaceTaken(Exception):
    """The server wants this worker to end: others wait, and its client has proved nothing."""


class Peer:
    """Sends and receives messages. One thread receives; `heartbeat` may send from another."""

    def __init__(self, sock: socket.socket, connection: ServerConnection, lifeline: int) -> None:
        """`lifeline` is a descriptor that becomes readable when the worker must end."""
        # With a timeout of Python's own, that would ask the system before each read and write.
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, int(1e6 * LOOK_SECONDS)))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_vanishing(sock)
        self._sock = sock
        self.connection = connection
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(lifeline, select.POLLIN)
        self._lifeline = lifeline
        self._place = -1
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._sending = threading.Lock()
        self._waits_since: float | None = None
        self._tls: TlsLayer | None = None
        self.begins_with_tls = False
        """Whether the first bytes that the client said are those of TLS."""
        self.read_at = 0.0
        """When the last bytes were read, in seconds of `time.monotonic`; 0 before the first."""
        self._looked_at = -LOOK_SECONDS
        self.beat: Callable[[], None] | None = None
        """Called by the heartbeat now and then; once it has raised, that is logged and it is called no more."""
        self._stop_heartbeat = threading.Event()

    def may_lose_place(self, place: int) -> None:
        """From now on `receive` raises PlaceTaken once the descriptor `place` is readable; never where it is -1."""
        if self._place >= 0:
            self._poll.unregister(self._place)
        self._place = place
        if place >= 0:
            self._poll.register(place, select.POLLIN)

    def secure(self, context: ssl.SSLContext, timeout: float) -> bool:
        """Agree with the client on TLS; False where it does not begin with that, and nothing was read.

        Raises TlsFailed, PeerGone, PeerSilent after `timeout` seconds, and ServerStopping.
        """
        deadline = time.monotonic() + timeout
        self._wait(deadline)
        try:
            first = self._sock.recv(len(_TLS), socket.MSG_PEEK)
        except OSError as error:
            raise PeerGone from error
        if not first or first != _TLS[: len(first)]:
            return False
        self._tls = TlsLayer(context)
        while not self._tls.agreed:
            self._fill(deadline)
            if self.connection.ended:
                raise PeerGone
        return True

    def receive(self, timeout: float) -> Message:
        """The next message.

        Raises PeerGone, PeerSilent after `timeout` seconds, ServerStopping, PlaceTaken, and RemoteProtocolError.
        """
        deadline = time.monotonic() + timeout
        fills = not self.connection.buffered  # as it is where the last message was all that came
        while True:
            if fills:
                try:
                    self._fill(deadline)
                except TlsFailed as error:
                    raise PeerGone from error
            with self._sending:  # the state machine is the heartbeat's too
                event = self.connection.next_event()
            if event is not NEED_DATA:
                if isinstance(event, ConnectionClosed):
                    raise PeerGone
                return event
            fills = True

    def _wait(self, deadline: float) -> None:
        """Until there is something to be read. Raises PeerSilent, ServerStopping and PlaceTaken."""
        self._looked_at = time.monotonic()
        remaining = deadline - self._looked_at
        ready = dict(self._poll.poll(max(0.0, remaining) * 1000))
        if self._lifeline in ready and (self.read_at or self._sock.fileno() not in ready):
            raise ServerStopping  # a hello that is there is read first: it says in which codec to answer
        if self._place in ready and self._sock.fileno() not in ready:
            raise PlaceTaken
        if not ready:
            raise PeerSilent

    def _fill(self, deadline: float) -> None:
        """Some bytes, or in vain. The next ones come soon where environments are fast: they are waited for by reading.

        Only a look beside that, now and then and where nothing comes, tells of the lifeline and of the deadline.
        """
        self._waits_since = None
        if self.read_at - self._looked_at >= LOOK_SECONDS or not self.read_at:
            self._wait(deadline)
        try:
            count = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            self._wait(deadline)
            return
        except OSError as error:
            raise PeerGone from error
        data = self._buffer[:count]
        if not self.read_at:
            self.begins_with_tls = data[: len(_TLS)] == _TLS
        self.read_at = self._waits_since = time.monotonic()
        if self._tls is None or not count:
            self.connection.receive_data(data)
            return
        with self._sending:
            said = self._opened(self._tls, data)
            if said:
                self.connection.receive_data(said)
            if self._tls.ended:
                self.connection.receive_data(b"")

    def _opened(self, tls: TlsLayer, data: memoryview) -> bytes:
        """What was said over TLS. Raises TlsFailed and PeerGone."""
        try:
            return tls.received(data)
        finally:
            self._write(tls.to_send())

    def _write(self, data: bytes) -> None:
        """Whoever calls has the lock. Raises PeerGone, also where the client takes nothing in for too long."""
        deadline, rest = 0.0, memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                deadline = deadline or time.monotonic() + SEND_SECONDS
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                if not writable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise PeerGone from None
            except OSError as error:
                raise PeerGone from error

    def _send(self, data: bytes) -> None:
        """Whoever calls has the lock. Raises PeerGone."""
        if self._tls is None:
            self._write(data)
            return
        if not self._tls.agreed:
            raise PeerGone  # nothing can be said to it
        try:
            for begin in range(0, len(data), RECORDS_BYTES):
                self._write(self._tls.sealed(data[begin : begin + RECORDS_BYTES]))
        except TlsFailed as error:
            raise PeerGone from error

    def send(self, message: ServerMessage) -> None:
        """Raises PeerGone."""
        with self._sending:
            self._send(self.connection.send(message))

    def start_heartbeat(self, seconds: float) -> None:
        """Ping the client whenever nothing was received for half as long: it waits for an answer, or may come to."""
        threading.Thread(target=self._heartbeat, args=(seconds,), name="heartbeat", daemon=True).start()

    def _heartbeat(self, seconds: float) -> None:
        while not self._stop_heartbeat.wait(min(seconds / 2, BEAT_SECONDS)):
            self._ping_after(seconds / 2)
            if self.beat is not None:
                try:
                    self.beat()
                except Exception:
                    _log.exception("what is measured beside the heartbeat failed, and is given up")
                    self.beat = None

    def _ping_after(self, seconds: float) -> None:
        with self._sending:
            since = self._waits_since
            if since is None or time.monotonic() - since < seconds:
                return
            with contextlib.suppress(PeerGone, LocalProtocolError):  # the receiving thread will notice
                self._send(self.connection.send(Ping()))

    def refuse(self, code: ErrorCode, message: str, retry_after_seconds: float = 0.0) -> None:
        """Tell the client why the connection ends, where it can still be told. Never raises."""
        with contextlib.suppress(PeerGone, LocalProtocolError):
            self.send(Error(code, message, code.retryable, retry_after_seconds))

    def close(self) -> None:
        """Half-close, drain, close.

        Closing a socket with unread bytes, or one that more is sent to, would make TCP drop what was just sent, an
        error perhaps. Before the welcome a client says its hello and waits: where nothing is unread, little can come.
        """
        self._stop_heartbeat.set()
        with contextlib.suppress(OSError, PeerGone):
            if self._tls is not None:
                with self._sending:
                    self._write(self._tls.farewell())
            more = self.connection.welcome is not None or self._sock.fileno() in dict(self._poll.poll(0))
            self._sock.shutdown(socket.SHUT_WR)
            self._drain(DRAIN_SECONDS if more else GOODBYE_SECONDS)
        self._sock.close()

    def _drain(self, seconds: float) -> None:
        """Until the client has closed its end, for so many seconds at most. Raises OSError."""
        deadline, drained = time.monotonic() + seconds, 0
        while drained < DRAIN_BYTES and (remaining := deadline - time.monotonic()) > 0:
            self._sock.settimeout(remaining)
            count = self._sock.recv_into(self._buffer)
            if not count:
                break
            drained += count
