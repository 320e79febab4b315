"""Messages over the socket of one connection, with deadlines and a heartbeat."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Sequence

from relaax.rlx import (
    NEED_DATA,
    Bye,
    ConnectionClosed,
    Error,
    LocalProtocolError,
    Message,
    Ping,
    Pong,
    RemoteProtocolError,
    ServerConnection,
    ServerMessage,
)
from relaax.rlx.errors import ErrorCode
from relaax.server.rlx_server.clients.meters import READING, WRITING, Meter
from relaax.server.rlx_server.connection.channel import Channel, PeerGone, begins_with_http
from relaax.server.rlx_server.worker_reports import REVOKED

_log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
DRAIN_SECONDS = 1.0
GOODBYE_SECONDS = 0.1
SEND_SECONDS = 30.0
BEAT_SECONDS = 5.0
LISTEN_SECONDS = 1.0
"""Interval at which the heartbeat listens to the client of a busy worker."""
BUSY_SECONDS = 0.5
"""A worker that has not returned to its client for this long is busy."""
END_SECONDS = 0.2
"""Replaces LISTEN_SECONDS for a client that has closed its sending side, and may have gone."""
FINISH_SECONDS = 2.0
"""Time for a busy worker to finish once its server stops. The listener kills it after 5 seconds."""
LOOK_SECONDS = 0.1
"""Maximum delay until a worker notices that it must end, or that a deadline has passed."""
VANISHED_SECONDS = 30
"""Time after its last acknowledgement until a client counts as gone: no probe answered, no data taken."""
DRAIN_BYTES = 4 * 2**20
_TLS = b"\x16\x03"  # the start of a client's first record: a handshake, version 3


class PeerLeft(Exception):
    """The client has said goodbye before it was answered."""


class PeerSilent(Exception):
    """The client sent nothing before the deadline."""


class ServerStopping(Exception):
    """The server is stopping its workers."""


class SlotTaken(Exception):
    """The server is stopping this worker: its client is unproven, and others wait for its place."""


class Revoked(Exception):
    """The server is stopping this worker: the client's token has been revoked."""


class Peer:
    """Send and receive messages in one thread; a second thread, the heartbeat, pings the client.

    While the first thread is busy, the heartbeat listens to the client: it answers pings, keeps other messages for
    `receive`, and notices what ends the connection.
    """

    def __init__(
        self, sock: socket.socket, connection: ServerConnection, lifeline: int, origins: Sequence[str] = ()
    ) -> None:
        """`lifeline` is a descriptor that becomes readable when the worker must end. `origins`: see `Channel`."""
        # Python's own timeout would add a system call before each read and write.
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, int(1e6 * LOOK_SECONDS)))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_vanishing(sock)
        self._sock = sock
        self.connection = connection
        self.channel = Channel(connection, origins)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(lifeline, select.POLLIN)
        self._lifeline = lifeline
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._stopping = select.poll()
        self._stopping.register(lifeline, select.POLLIN)
        self._reports = -1
        self.may_lose_place = False
        """Whether the end of the line given to `watch_reports` raises SlotTaken."""
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._lock = threading.Lock()  # guards the state machine, sending, and what the heartbeat has heard
        self._heard: deque[Message] = deque()  # received while the worker was busy, or before an answer was sent
        self._end: Exception | None = None  # what the heartbeat has noticed
        self._stream_ended = False
        self._listens = False  # the heartbeat is listening now
        self._finish_by = math.inf  # once the server stops
        self.interrupt: Callable[[], None] | None = None
        """Called by the heartbeat when it notices that a busy worker must end: `raise_end` raises the reason."""
        self._waits_since: float | None = None
        self.begins_with_tls = False
        """Whether the client's first bytes are those of TLS."""
        self.read_at = 0.0
        """When the last bytes were read, in seconds of `time.monotonic`; 0 before the first."""
        self.transferred = 0
        """Bytes read and written so far."""
        self.meter: Meter | None = None
        self.throttled = False
        """While set, the heartbeat reads nothing as long as a message waits for `receive`."""
        self._looked_at = -LOOK_SECONDS
        self.beat: Callable[[], None] | None = None
        """Called by the heartbeat at intervals, until it raises, which is logged."""
        self._stop_heartbeat = threading.Event()

    def watch_reports(self, reports: int) -> None:
        """Make `receive` raise Revoked if `reports` carries REVOKED, and SlotTaken once its other end is closed."""
        self._reports, self.may_lose_place = reports, True
        os.set_blocking(reports, False)  # the heartbeat may have read it first
        self._poll.register(reports, select.POLLIN)
        self._stopping.register(reports, select.POLLIN)

    def _raise_revoked(self, ready: Container[int]) -> None:
        """Raise Revoked if the server has sent REVOKED."""
        if self._reports in ready:
            with contextlib.suppress(BlockingIOError):
                if os.read(self._reports, 1) == REVOKED:
                    raise Revoked

    def secure(self, context: ssl.SSLContext, timeout: float) -> bool:
        """Perform the TLS handshake. Returns False, having read nothing, if the client does not start one.

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
        self.channel.use_tls(context)
        while not self.channel.agreed:
            data = self._read(deadline)
            if data is not None:
                with self._lock:
                    self._take_in(data)
            if self.connection.ended:
                raise PeerGone
        return True

    def begins_with_http(self) -> bool:
        """Return whether the client's first byte, if it has arrived, is one of HTTP. Reads nothing."""
        with contextlib.suppress(OSError):  # it has disconnected
            return begins_with_http(self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return False

    def receive(self, timeout: float) -> Message:
        """Return the next message.

        Raises PeerGone, PeerSilent after `timeout` seconds, RemoteProtocolError, HttpRefused and the errors of `_wait`.
        """
        deadline = time.monotonic() + timeout
        fills = not self.channel.pending  # as when the last message used all bytes
        half = False
        while True:
            data = self._read(deadline) if fills else None
            with self._lock:  # the heartbeat uses the state machine too
                if data is not None:
                    self._waits_since = self.read_at
                    self._take_in(data)
                event = self._heard.popleft() if self._heard else self.channel.next_event()
                if event is NEED_DATA and self.channel.ended:
                    self.connection.receive_data(b"")
                    event = self.connection.next_event()
            if event is not NEED_DATA:
                if half and self.meter is not None:
                    self.meter.goes_on()
                if isinstance(event, ConnectionClosed):
                    raise PeerGone
                return event
            if not half and self.meter is not None and self.connection.buffered:
                half = True
                self.meter.stuck(READING)
            fills = True

    def _wait(self, deadline: float) -> None:
        """Wait until there is data to read. Raises PeerSilent, ServerStopping, SlotTaken and Revoked."""
        self._looked_at = time.monotonic()
        remaining = deadline - self._looked_at
        ready = dict(self._poll.poll(max(0.0, remaining) * 1000))
        if self._lifeline in ready and (self.read_at or self._sock.fileno() not in ready):
            raise ServerStopping  # a hello that has arrived is read first: it determines the codec of the answer
        self._raise_revoked(ready)
        if self.may_lose_place and self._reports in ready and self._sock.fileno() not in ready:
            raise SlotTaken
        if not ready:
            raise PeerSilent

    def _read(self, deadline: float) -> memoryview | None:
        """Return some bytes, or None. With fast environments data comes soon, so the wait is a blocking read.

        The lifeline and the deadline are checked only at intervals and if no data comes.
        """
        self._waits_since = None  # from here on the heartbeat does not read until these bytes are processed
        if self._listens:
            with self._lock:  # it began earlier: wait for it, as its data comes first
                pass
        if self._heard:
            self._waits_since = time.monotonic()
            return None
        self.raise_end()
        if self.read_at - self._looked_at >= LOOK_SECONDS or not self.read_at:
            self._wait(deadline)
        try:
            count = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            self._wait(deadline)
            return None
        except OSError as error:
            raise PeerGone from error
        self.transferred += count
        data = self._buffer[:count]
        if not self.read_at:
            self.begins_with_tls = data[: len(_TLS)] == _TLS
        self.read_at = time.monotonic()
        return data

    def _take_in(self, data: memoryview) -> None:
        """Process data that was read; empty data is the end of the stream. Call with the lock held.

        Raises PeerGone, TlsFailed and HttpRefused.
        """
        if not data or self.channel.direct:
            self.connection.receive_data(data)
            return
        try:
            said = self.channel.received(data)
        finally:
            self._write(self.channel.to_send())
        if said:
            self.connection.receive_data(said)
        if self.channel.ended:
            self._stream_ended = True

    def _write(self, data: bytes) -> None:
        """Write data. Call with the lock held. Raises PeerGone, also if the client does not read for too long."""
        self.transferred += len(data)
        deadline, rest = 0.0, memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not deadline:
                    deadline = time.monotonic() + SEND_SECONDS
                    if self.meter is not None:
                        self.meter.stuck(WRITING)
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                if not writable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise PeerGone from None
            except OSError as error:
                raise PeerGone from error
        if deadline and self.meter is not None:
            self.meter.goes_on()

    def _send(self, data: bytes) -> None:
        """Write frames of RLX, in the layers in use. Call with the lock held. Raises PeerGone."""
        if self.channel.direct:
            self._write(data)
            return
        for piece in self.channel.sealed(data):
            self._write(piece)

    def send(self, message: ServerMessage) -> None:
        """Send a message. Raises PeerGone."""
        with self._lock:
            self._send(self.connection.send(message))

    def answer(self, message: ServerMessage) -> None:
        """Send the answer that the client waits for, after processing what it sent before.

        Raises PeerGone, PeerLeft, RemoteProtocolError, and the error that the heartbeat has noticed.
        """
        with self._lock:
            self.raise_end()
            self._listen()
            self._send(self.connection.send(message))

    def raise_end(self) -> None:
        """Raise the error that ends the connection, if the heartbeat has noticed one."""
        if self._end is not None:
            raise self._end

    def _listen(self) -> None:
        """Read what has arrived and answer pings. Call with the lock held, while no other thread reads.

        Raises PeerGone, PeerLeft and RemoteProtocolError. The end of the stream is no error: the client may still read.
        """
        if self.channel.pending:
            self._hear()
        if (self.throttled and self._heard) or not self._readable.poll(0):
            return
        try:
            count = self._sock.recv_into(self._buffer)
        except OSError as error:
            raise PeerGone from error
        self.transferred += count
        if not count:
            self._stream_ended = True
            return
        self._take_in(self._buffer[:count])
        self._hear()

    def _hear(self) -> None:
        while (event := self.channel.next_event()) is not NEED_DATA:
            if isinstance(event, Bye):
                raise PeerLeft
            if isinstance(event, ConnectionClosed):
                raise PeerGone
            if isinstance(event, Ping):
                self._send(self.connection.send(Pong(event.nonce)))
            elif not isinstance(event, Pong):
                self._heard.append(event)

    def start_heartbeat(self, seconds: float) -> None:
        """Start the heartbeat: ping the client if it may have been waiting for `seconds` / 2."""
        threading.Thread(target=self._heartbeat, args=(seconds,), name="heartbeat", daemon=True).start()

    def _heartbeat(self, seconds: float) -> None:
        pause = min(seconds / 2, BEAT_SECONDS)
        next_beat = time.monotonic() + pause
        while not self._stop_heartbeat.wait(min(pause, END_SECONDS if self._stream_ended else LISTEN_SECONDS)):
            self._listen_while_busy()
            self._ping_after(seconds / 2)
            if self.beat is not None and time.monotonic() >= next_beat:
                next_beat = time.monotonic() + pause
                try:
                    self.beat()
                except Exception:
                    _log.exception("the heartbeat's measurements failed and are disabled")
                    self.beat = None

    def _listen_while_busy(self) -> None:
        """Listen to the client of a busy worker; interrupt the worker if the connection must end."""
        with self._lock:
            self._listens = True
            try:
                since = self._waits_since
                if since is None or self._end is not None or time.monotonic() - since < BUSY_SECONDS:
                    return
                self._listen()
                if self._stream_ended:  # a client that has gone, not only closed its sending side, answers with a reset
                    self._send(self.connection.send(Ping()))
                ready = dict(self._stopping.poll(0))
                self._raise_revoked(ready)
                if self._lifeline in ready:
                    self._finish_by = min(self._finish_by, time.monotonic() + FINISH_SECONDS)
                    if time.monotonic() >= self._finish_by:
                        raise ServerStopping
            except (PeerGone, PeerLeft, RemoteProtocolError, ServerStopping, Revoked) as end:
                self._end = end
            except LocalProtocolError:  # the connection has ended already
                return
            finally:
                self._listens = False
        if self._end is not None and self.interrupt is not None:
            self.interrupt()

    def _ping_after(self, seconds: float) -> None:
        with self._lock:
            since = self._waits_since
            if since is None or time.monotonic() - since < seconds:
                return
            with contextlib.suppress(PeerGone, LocalProtocolError):  # the receiving thread will notice
                self._send(self.connection.send(Ping()))

    def refuse(self, code: ErrorCode, message: str, retry_after_seconds: float = 0.0) -> None:
        """Tell the client why the connection ends, if it can still be reached. Never raises."""
        with contextlib.suppress(PeerGone, LocalProtocolError):
            self.send(Error(code, message, code.retryable, retry_after_seconds))

    def close(self) -> None:
        """Half-close, drain, close.

        If a socket is closed with unread bytes, or receives more, TCP drops the data just sent, perhaps an error.
        Before the welcome a client only sends its hello and waits, so if nothing is unread, little can come.
        """
        self._stop_heartbeat.set()
        with contextlib.suppress(OSError, PeerGone):
            if not self.channel.direct:
                with self._lock:
                    self._write(self.channel.farewell())
            more = self.connection.welcome is not None or self._sock.fileno() in dict(self._poll.poll(0))
            self._sock.shutdown(socket.SHUT_WR)
            _drain(self._sock, self._buffer, DRAIN_SECONDS if more else GOODBYE_SECONDS)
        self._sock.close()


def _notice_vanishing(sock: socket.socket) -> None:
    """Make the kernel end the connection `VANISHED_SECONDS` after its peer has vanished, busy or idle.

    Without TCP_USER_TIMEOUT (available on Linux) unacknowledged data is retransmitted for a quarter of an hour. A live
    client that does not read is disconnected after the same time if data waits for it.
    """
    with contextlib.suppress(OSError):  # such as a socket of another family, which needs no detection
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", VANISHED_SECONDS // 2),
            ("TCP_KEEPINTVL", VANISHED_SECONDS // 6),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 1000 * VANISHED_SECONDS),
        ):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _drain(sock: socket.socket, buffer: memoryview, seconds: float) -> None:
    """Discard incoming data until the client closes its end, for at most `seconds`. Raises OSError."""
    deadline, drained = time.monotonic() + seconds, 0
    while drained < DRAIN_BYTES and (remaining := deadline - time.monotonic()) > 0:
        sock.settimeout(remaining)
        count = sock.recv_into(buffer)
        if not count:
            break
        drained += count
