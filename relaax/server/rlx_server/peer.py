"""The socket of one connection, with deadlines."""

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
from collections.abc import Callable, Container

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
from relaax.server.rlx_server import disconnects
from relaax.server.rlx_server.dead_peers import notice_vanishing
from relaax.server.rlx_server.disconnects import PeerGone, PeerLeft, PeerSilent, Revoked, ServerStopping, SlotTaken
from relaax.server.rlx_server.meters import READING, WRITING, Meter
from relaax.server.rlx_server.tls_layer import RECORDS_BYTES, TlsFailed, TlsLayer
from relaax.server.rlx_server.worker_reports import REVOKED

_log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
DRAIN_SECONDS = 1.0
GOODBYE_SECONDS = 0.1
SEND_SECONDS = 30.0
BEAT_SECONDS = 5.0
LISTEN_SECONDS = 1.0
"""Between two times that the heartbeat listens to the client of a worker that is busy."""
BUSY_SECONDS = 0.5
"""A worker that has not come back to its client for so long is busy."""
END_SECONDS = 0.2
"""The same as LISTEN_SECONDS for a client that has ended its stream, and may have gone."""
FINISH_SECONDS = 2.0
"""What a busy worker may take to finish once its server stops. The listener kills it after 5 seconds."""
LOOK_SECONDS = 0.1
"""So much later than anything else a worker may notice that the server wants it to end, or that a deadline is over."""
_TLS = b"\x16\x03"  # how a client's first record begins: a handshake, version 3


class Peer:
    """Sends and receives messages. One thread does; the heartbeat is another one, which pings the client.

    While the first is busy, the heartbeat listens to the client: it answers pings, keeps what else is said for
    `receive`, and notices what ends the connection.
    """

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
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._stopping = select.poll()
        self._stopping.register(lifeline, select.POLLIN)
        self._reports = -1
        self.may_lose_place = False
        """Whether the end of what `heed` heeds is a SlotTaken."""
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._lock = threading.Lock()  # of the state machine, of sending, and of what the heartbeat has heard
        self._heard: deque[Message] = deque()  # while the worker was busy, or before an answer was sent
        self._end: Exception | None = None  # what the heartbeat has noticed
        self._stream_ended = False
        self._listens = False  # the heartbeat, just now
        self._finish_by = math.inf  # once the server stops
        self.interrupt: Callable[[], None] | None = None
        """Called by the heartbeat once it has noticed that a busy worker must end: `raise_end` says why."""
        self._waits_since: float | None = None
        self._tls: TlsLayer | None = None
        self.begins_with_tls = False
        """Whether the first bytes that the client said are those of TLS."""
        self.read_at = 0.0
        """When the last bytes were read, in seconds of `time.monotonic`; 0 before the first."""
        self.transferred = 0
        """Bytes that were read and written so far."""
        self.meter: Meter | None = None
        self.throttled = False
        """While it is, no more is taken in than what is there and waits to be heard."""
        self._looked_at = -LOOK_SECONDS
        self.beat: Callable[[], None] | None = None
        """Called by the heartbeat now and then; once it has raised, that is logged and it is called no more."""
        self._stop_heartbeat = threading.Event()

    def heed(self, reports: int) -> None:
        """Let `receive` raise Revoked if `reports` says so, and SlotTaken once its other end is closed."""
        self._reports, self.may_lose_place = reports, True
        os.set_blocking(reports, False)  # the heartbeat may have heard what this looks for
        self._poll.register(reports, select.POLLIN)
        self._stopping.register(reports, select.POLLIN)

    def _raise_revoked(self, ready: Container[int]) -> None:
        """Raise Revoked where the server has said so."""
        if self._reports in ready:
            with contextlib.suppress(BlockingIOError):
                if os.read(self._reports, 1) == REVOKED:
                    raise Revoked

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
            data = self._read(deadline)
            if data is not None:
                with self._lock:
                    self._take_in(data)
            if self.connection.ended:
                raise PeerGone
        return True

    def receive(self, timeout: float) -> Message:
        """The next message.

        Raises PeerGone, PeerSilent after `timeout` seconds, RemoteProtocolError, and what the server wants (`_wait`).
        """
        deadline = time.monotonic() + timeout
        fills = not self.connection.buffered  # as it is where the last message was all that came
        half = False
        while True:
            data = self._read(deadline) if fills else None
            with self._lock:  # the state machine is the heartbeat's too
                if data is not None:
                    self._waits_since = self.read_at
                    self._take_in(data)
                event = self._heard.popleft() if self._heard else self.connection.next_event()
                if event is NEED_DATA and self._tls is not None and self._tls.ended:
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
        """Until there is something to be read. Raises PeerSilent, ServerStopping, SlotTaken and Revoked."""
        self._looked_at = time.monotonic()
        remaining = deadline - self._looked_at
        ready = dict(self._poll.poll(max(0.0, remaining) * 1000))
        if self._lifeline in ready and (self.read_at or self._sock.fileno() not in ready):
            raise ServerStopping  # a hello that is there is read first: it says in which codec to answer
        self._raise_revoked(ready)
        if self.may_lose_place and self._reports in ready and self._sock.fileno() not in ready:
            raise SlotTaken
        if not ready:
            raise PeerSilent

    def _read(self, deadline: float) -> memoryview | None:
        """Some bytes, or in vain. The next ones come soon where environments are fast: they are waited for by reading.

        Only a look beside that, now and then and where nothing comes, tells of the lifeline and of the deadline.
        """
        self._waits_since = None  # from here on the heartbeat does not read, until these bytes were taken in
        if self._listens:
            with self._lock:  # it began to before: what it hears comes first
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
        """What was read; nothing is the end of the stream. Whoever calls has the lock. Raises PeerGone."""
        if self._tls is None or not data:
            self.connection.receive_data(data)
            return
        try:
            said = self._opened(self._tls, data)
        except TlsFailed as error:
            if not self._tls.agreed:
                raise
            raise PeerGone from error
        if said:
            self.connection.receive_data(said)
        if self._tls.ended:
            self._stream_ended = True

    def _opened(self, tls: TlsLayer, data: memoryview) -> bytes:
        """What was said over TLS. Raises TlsFailed and PeerGone."""
        try:
            return tls.received(data)
        finally:
            self._write(tls.to_send())

    def _write(self, data: bytes) -> None:
        """Whoever calls has the lock. Raises PeerGone, also where the client takes nothing in for too long."""
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
        with self._lock:
            self._send(self.connection.send(message))

    def answer(self, message: ServerMessage) -> None:
        """Send what the client waits for. What it has said before it had this is judged first.

        Raises PeerGone, PeerLeft, RemoteProtocolError, and what the heartbeat has noticed.
        """
        with self._lock:
            self.raise_end()
            self._listen()
            self._send(self.connection.send(message))

    def raise_end(self) -> None:
        """Raise what the heartbeat has noticed and ends the connection, if there is anything."""
        if self._end is not None:
            raise self._end

    def _listen(self) -> None:
        """Hear what has come so far, and answer pings. Whoever calls has the lock, and nobody else reads.

        Raises PeerGone, PeerLeft and RemoteProtocolError. The end of the stream is no error: the client may listen.
        """
        if self.connection.buffered:
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
        while (event := self.connection.next_event()) is not NEED_DATA:
            if isinstance(event, Bye):
                raise PeerLeft
            if isinstance(event, ConnectionClosed):
                raise PeerGone
            if isinstance(event, Ping):
                self._send(self.connection.send(Pong(event.nonce)))
            elif not isinstance(event, Pong):
                self._heard.append(event)

    def start_heartbeat(self, seconds: float) -> None:
        """Ping the client whenever nothing was received for half as long: it waits for an answer, or may come to."""
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
                    _log.exception("what is measured beside the heartbeat failed, and is given up")
                    self.beat = None

    def _listen_while_busy(self) -> None:
        """What ends the connection meanwhile interrupts what the worker does."""
        with self._lock:
            self._listens = True
            try:
                since = self._waits_since
                if since is None or self._end is not None or time.monotonic() - since < BUSY_SECONDS:
                    return
                self._listen()
                if self._stream_ended:  # a client that has gone and not only ended its stream answers by a reset
                    self._send(self.connection.send(Ping()))
                ready = dict(self._stopping.poll(0))
                self._raise_revoked(ready)
                if self._lifeline in ready:
                    self._finish_by = min(self._finish_by, time.monotonic() + FINISH_SECONDS)
                    if time.monotonic() >= self._finish_by:
                        raise ServerStopping
            except (PeerGone, PeerLeft, RemoteProtocolError, ServerStopping, Revoked) as end:
                self._end = end
            except LocalProtocolError:  # all was said already
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
                with self._lock:
                    self._write(self._tls.farewell())
            more = self.connection.welcome is not None or self._sock.fileno() in dict(self._poll.poll(0))
            self._sock.shutdown(socket.SHUT_WR)
            disconnects.drain(self._sock, self._buffer, DRAIN_SECONDS if more else GOODBYE_SECONDS)
        self._sock.close()
