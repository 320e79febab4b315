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

from relaax import rlx
from relaax.server.rlx_server.clients.meters import READING, WRITING, Meter
from relaax.server.rlx_server.connection.channel import Channel, PeerDisconnected, begins_with_http
from relaax.server.rlx_server.worker_reports import REVOKED

_log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
DRAIN_SECONDS = 1.0
SHORT_DRAIN_SECONDS = 0.1
SEND_SECONDS = 30.0
BEAT_SECONDS = 5.0
BUSY_CHECK_SECONDS = 1.0
"""Interval at which the heartbeat reads from the client of a busy worker."""
BUSY_SECONDS = 0.5
"""A worker is busy if its client has waited this long for an answer."""
END_SECONDS = 0.2
"""Replaces BUSY_CHECK_SECONDS for a client that has closed its sending side and may have disconnected."""
FINISH_SECONDS = 2.0
"""Time for a busy worker to finish after its server stops. The listener kills it after 5 seconds."""
CHECK_SECONDS = 0.1
"""Maximum delay until a worker detects that it must end, or that a deadline has passed."""
VANISHED_SECONDS = 30
"""A client counts as disconnected if it acknowledges neither probes nor data for this long."""
DRAIN_BYTES = 4 * 2**20
_TLS = b"\x16\x03"  # the start of a client's first record: a handshake, version 3


class PeerSentBye(Exception):
    """The client sent a bye before the worker answered."""


class PeerTimeout(Exception):
    """The client sent no message before the deadline."""


class ServerStopping(Exception):
    """The server is stopping its workers."""


class PlaceReclaimed(Exception):
    """The server is stopping this worker: its client is unproven, and other clients wait for its place."""


class Revoked(Exception):
    """The server is stopping this worker: the client's token has been revoked."""


class Peer:
    """The messages of one connection. One thread sends and receives; a second thread, the heartbeat, pings the client.

    While the first thread is busy, the heartbeat reads from the client: it answers pings, queues other messages for
    `receive`, and detects the end of the connection.
    """

    def __init__(
        self, sock: socket.socket, connection: rlx.ServerConnection, lifeline: int, origins: Sequence[str] = ()
    ) -> None:
        """`lifeline`: a descriptor that becomes readable when the worker must end. `origins`: see `Channel`."""
        # Python's own timeout would add a system call before each read and write.
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, int(1e6 * CHECK_SECONDS)))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _detect_dead_peer(sock)
        self._sock = sock
        self.connection = connection
        self.channel = Channel(connection, origins)
        self._lifeline = lifeline
        self._poll, self._readable, self._stopping = _polling(sock, lifeline), _polling(sock), _polling(lifeline)
        self._reports = -1
        self.may_lose_place = False
        """Whether `receive` raises PlaceReclaimed if the server closes its end of the report sockets."""
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._lock = threading.Lock()  # guards the state machine, sending, and the messages in _received
        self._received: deque[rlx.Message] = deque()  # while the worker was busy, or before an answer
        self._error: Exception | None = None  # detected by the heartbeat
        self._stream_ended = False
        self._is_receiving = False  # the heartbeat is reading now
        self._finish_by = math.inf  # set when the server stops
        self.interrupt: Callable[[], None] | None = None
        """Called by the heartbeat if a busy worker must end; `raise_pending_error` then raises the reason."""
        self._client_waiting_since: float | None = None
        self.begins_with_tls = False
        """Whether the connection begins with TLS."""
        self.read_at = 0.0
        """When the last bytes were read, in seconds of `time.monotonic`; 0 before the first."""
        self.transferred = 0
        """Bytes read and written so far."""
        self.meter: Meter | None = None
        self.throttled = False
        """While true, the heartbeat does not read if a message waits for `receive`."""
        self._checked_at = -CHECK_SECONDS
        self.beat: Callable[[], None] | None = None
        """Called by the heartbeat at intervals. If it raises, the error is logged and the calls stop."""
        self._stop_heartbeat = threading.Event()

    def watch_reports(self, reports: int) -> None:
        """Watch `reports`, the worker's end of the report sockets.

        `receive` then raises Revoked if REVOKED arrives, and PlaceReclaimed if the server closes its end.
        """
        self._reports, self.may_lose_place = reports, True
        os.set_blocking(reports, False)  # the heartbeat may have read it first
        self._poll.register(reports, select.POLLIN)
        self._stopping.register(reports, select.POLLIN)

    def _raise_revoked(self, ready: Container[int]) -> None:
        if self._reports in ready:
            with contextlib.suppress(BlockingIOError):
                if os.read(self._reports, 1) == REVOKED:
                    raise Revoked

    def secure(self, context: ssl.SSLContext, timeout: float) -> bool:
        """Perform the TLS handshake. Return False, without reading, if the client does not start one.

        Raises TlsFailed, PeerDisconnected, PeerTimeout after `timeout` seconds, and ServerStopping.
        """
        deadline = time.monotonic() + timeout
        self._wait(deadline)
        try:
            first = self._sock.recv(len(_TLS), socket.MSG_PEEK)
        except OSError as error:
            raise PeerDisconnected from error
        if not first or first != _TLS[: len(first)]:
            return False
        self.channel.use_tls(context)
        while not self.channel.is_agreed:
            data = self._read(deadline)
            if data is not None:
                with self._lock:
                    self._process(data)
            if self.connection.ended:
                raise PeerDisconnected
        return True

    def begins_with_http(self) -> bool:
        """Return whether the client's first byte has arrived and is HTTP. The byte stays unread."""
        with contextlib.suppress(OSError):  # it has disconnected
            return begins_with_http(self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        return False

    def receive(self, timeout: float) -> rlx.Message:
        """Return the next message.

        Raises PeerDisconnected, PeerTimeout after `timeout` seconds, RemoteProtocolError, HttpRefused, and the errors
        of `_wait`.
        """
        deadline = time.monotonic() + timeout
        must_read = not self.channel.pending  # false if data of the last read is left
        is_partial = False
        while True:
            data = self._read(deadline) if must_read else None
            with self._lock:  # the heartbeat uses the state machine too
                if data is not None:
                    self._client_waiting_since = self.read_at
                    self._process(data)
                event = self._received.popleft() if self._received else self.channel.next_event()
                if event is rlx.NEED_DATA and self.channel.ended:
                    self.connection.receive_data(b"")
                    event = self.connection.next_event()
            if event is not rlx.NEED_DATA:
                if is_partial and self.meter is not None:
                    self.meter.clear_stuck()
                if isinstance(event, rlx.ConnectionClosed):
                    raise PeerDisconnected
                return event
            if not is_partial and self.meter is not None and self.connection.buffered:
                is_partial = True
                self.meter.set_stuck(READING)
            must_read = True

    def _wait(self, deadline: float) -> None:
        """Wait until there is data to read. Raises PeerTimeout, ServerStopping, PlaceReclaimed and Revoked."""
        self._checked_at = time.monotonic()
        ready = dict(self._poll.poll(max(0.0, deadline - self._checked_at) * 1000))
        if self._lifeline in ready and (self.read_at or self._sock.fileno() not in ready):
            raise ServerStopping  # a hello that has arrived is read first: it determines the codec of the error
        self._raise_revoked(ready)
        if self.may_lose_place and self._reports in ready and self._sock.fileno() not in ready:
            raise PlaceReclaimed
        if not ready:
            raise PeerTimeout

    def _read(self, deadline: float) -> memoryview | None:
        """Return received bytes. Return None if a message is queued or no bytes have arrived yet.

        It waits in a blocking read, because fast environments send soon. The lifeline and the deadline are checked at
        intervals, and when no data arrives.
        """
        self._client_waiting_since = None  # the heartbeat does not read until these bytes are processed
        if self._is_receiving:
            with self._lock:  # wait: the heartbeat began to read first, so its data is earlier
                pass
        if self._received:
            self._client_waiting_since = time.monotonic()
            return None
        self.raise_pending_error()
        if self.read_at - self._checked_at >= CHECK_SECONDS or not self.read_at:
            self._wait(deadline)
        try:
            count = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            self._wait(deadline)
            return None
        except OSError as error:
            raise PeerDisconnected from error
        self.transferred += count
        data = self._buffer[:count]
        if not self.read_at:
            self.begins_with_tls = data[: len(_TLS)] == _TLS
        self.read_at = time.monotonic()
        return data

    def _process(self, data: memoryview) -> None:
        """Process bytes that were read; b"" is the end. Call with the lock held.

        Raises PeerDisconnected, TlsFailed and HttpRefused.
        """
        if not data or self.channel.direct:
            self.connection.receive_data(data)
            return
        try:
            decoded = self.channel.decode(data)
        finally:
            self._write(self.channel.to_send())
        if decoded:
            self.connection.receive_data(decoded)
        if self.channel.ended:
            self._stream_ended = True

    def _write(self, data: bytes) -> None:
        """Write data. Call with the lock held. Raises PeerDisconnected, also if the client does not read in time."""
        self.transferred += len(data)
        deadline, rest = 0.0, memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not deadline:
                    deadline = time.monotonic() + SEND_SECONDS
                    if self.meter is not None:
                        self.meter.set_stuck(WRITING)
                if not _polling(self._sock, event=select.POLLOUT).poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise PeerDisconnected from None
            except OSError as error:
                raise PeerDisconnected from error
        if deadline and self.meter is not None:
            self.meter.clear_stuck()

    def _send(self, data: bytes) -> None:
        if self.channel.direct:
            self._write(data)
            return
        for piece in self.channel.encode(data):
            self._write(piece)

    def send(self, message: rlx.ServerMessage) -> None:
        """Send a message. Raises PeerDisconnected."""
        with self._lock:
            self._send(self.connection.send(message))

    def answer(self, message: rlx.ServerMessage) -> None:
        """Process the bytes that have arrived, then send the answer for which the client waits.

        Raises PeerDisconnected, PeerSentBye, RemoteProtocolError, and an error that the heartbeat has detected.
        """
        with self._lock:
            self.raise_pending_error()
            self._receive_available()
            self._send(self.connection.send(message))

    def raise_pending_error(self) -> None:
        """Raise the error that ends the connection, if the heartbeat has detected one."""
        if self._error is not None:
            raise self._error

    def _receive_available(self) -> None:
        """Read the bytes that have arrived, and answer pings. Call with the lock held, while no other thread reads.

        Raises PeerDisconnected, PeerSentBye and RemoteProtocolError. The end of the stream raises no error: the client
        may still read.
        """
        if self.channel.pending:
            self._queue_events()
        if (self.throttled and self._received) or not self._readable.poll(0):
            return
        try:
            count = self._sock.recv_into(self._buffer)
        except OSError as error:
            raise PeerDisconnected from error
        self.transferred += count
        if not count:
            self._stream_ended = True
            return
        self._process(self._buffer[:count])
        self._queue_events()

    def _queue_events(self) -> None:
        while (event := self.channel.next_event()) is not rlx.NEED_DATA:
            if isinstance(event, rlx.Bye):
                raise PeerSentBye
            if isinstance(event, rlx.ConnectionClosed):
                raise PeerDisconnected
            if isinstance(event, rlx.Ping):
                self._send(self.connection.send(rlx.Pong(event.nonce)))
            elif not isinstance(event, rlx.Pong):
                self._received.append(event)

    def start_heartbeat(self, seconds: float) -> None:
        """Start the heartbeat, which pings a client that may have waited for its answer for `seconds` / 2."""
        threading.Thread(target=self._heartbeat, args=(seconds,), name="heartbeat", daemon=True).start()

    def _heartbeat(self, seconds: float) -> None:
        pause = min(seconds / 2, BEAT_SECONDS)
        next_beat = time.monotonic() + pause
        while not self._stop_heartbeat.wait(min(pause, END_SECONDS if self._stream_ended else BUSY_CHECK_SECONDS)):
            self._check_while_busy()
            self._ping_after(seconds / 2)
            if self.beat is not None and time.monotonic() >= next_beat:
                next_beat = time.monotonic() + pause
                try:
                    self.beat()
                except Exception:
                    _log.exception("the heartbeat's measurements failed and are disabled")
                    self.beat = None

    def stop_heartbeat(self) -> None:
        """Stop the heartbeat. After that it uses no descriptors, so that they can be closed."""
        with self._lock:
            self._stop_heartbeat.set()

    def _check_while_busy(self) -> None:
        """Read from the client of a busy worker. If the connection must end, interrupt the worker."""
        with self._lock:
            if self._stop_heartbeat.is_set():
                return
            self._is_receiving = True
            try:
                since = self._client_waiting_since
                if since is None or self._error is not None or time.monotonic() - since < BUSY_SECONDS:
                    return
                self._receive_available()
                if self._stream_ended:  # if the client has closed both directions, TCP answers with RST
                    self._send(self.connection.send(rlx.Ping()))
                ready = dict(self._stopping.poll(0))
                self._raise_revoked(ready)
                if self._lifeline in ready:
                    self._finish_by = min(self._finish_by, time.monotonic() + FINISH_SECONDS)
                    if time.monotonic() >= self._finish_by:
                        raise ServerStopping
            except (PeerDisconnected, PeerSentBye, rlx.RemoteProtocolError, ServerStopping, Revoked) as end:
                self._error = end
            except rlx.LocalProtocolError:  # the connection has ended already
                return
            finally:
                self._is_receiving = False
        if self._error is not None and self.interrupt is not None:
            self.interrupt()

    def _ping_after(self, seconds: float) -> None:
        with self._lock:
            since = self._client_waiting_since
            if since is None or time.monotonic() - since < seconds or self._stop_heartbeat.is_set():
                return
            with contextlib.suppress(PeerDisconnected, rlx.LocalProtocolError):  # the receiving thread detects it
                self._send(self.connection.send(rlx.Ping()))

    def refuse(self, code: rlx.ErrorCode, message: str, retry_after_seconds: float = 0.0) -> None:
        """Send the client an error that ends the connection, if it can still be reached. Never raises."""
        with contextlib.suppress(PeerDisconnected, rlx.LocalProtocolError):
            self.send(rlx.Error(code, message, code.retryable, retry_after_seconds))

    def close(self) -> None:
        """Half-close, drain and close the socket.

        If a socket is closed with unread bytes, or receives more, TCP discards the data sent last, such as an error.
        Before the welcome a client only sends its hello and waits. So if no bytes are unread, few can follow.
        """
        self.stop_heartbeat()
        with contextlib.suppress(OSError, PeerDisconnected):
            if not self.channel.direct:
                with self._lock:
                    self._write(self.channel.closing_bytes())
            more = self.connection.welcome is not None or self._sock.fileno() in dict(self._poll.poll(0))
            self._sock.shutdown(socket.SHUT_WR)
            _drain(self._sock, self._buffer, DRAIN_SECONDS if more else SHORT_DRAIN_SECONDS)
        self._sock.close()


def _polling(*files: socket.socket | int, event: int = select.POLLIN) -> select.poll:
    poll = select.poll()
    for file in files:
        poll.register(file, event)
    return poll


def _detect_dead_peer(sock: socket.socket) -> None:
    """Make the kernel end the connection `VANISHED_SECONDS` after its peer has become unreachable.

    Without TCP_USER_TIMEOUT (Linux only), unacknowledged data is retransmitted for about 15 minutes. A client that is
    reachable but does not read is disconnected after the same time if data is pending for it.
    """
    with contextlib.suppress(OSError):  # such as a Unix socket, which needs no detection
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
        if not (count := sock.recv_into(buffer)):
            break
        drained += count
