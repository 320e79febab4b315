"""A TCP proxy that can cut, stall, truncate or corrupt connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

PIECE = 1 << 16


class Proxy:
    """A forwarder of TCP connections from `address` to `target`, in both directions.

    Faults apply to all open connections. `refuse` and `stall` also apply to later connections:

    - `cut()` resets all connections; `refuse()` also resets new connections until `heal()`.
    - `stall()` silently stops forwarding until `heal()`.
    - `truncate(n)` forwards n more bytes to the target and then ends the connection, once.
    - `corrupt(n)` inverts the bits of one byte to the target, after n more bytes, once.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)  # so that the acceptor notices that the proxy is closed
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.refused = 0
        self.forwarded = 0
        """Bytes to the target, over all connections."""
        self._lock = threading.Lock()
        self._flows = threading.Event()
        self._flows.set()
        self._closed = False
        self._refuses = False
        self._truncate_after: int | None = None
        self._corrupt_after: int | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _reset(end)

    def refuse(self) -> None:
        self._refuses = True
        self.cut()

    def stall(self) -> None:
        self._flows.clear()

    def heal(self) -> None:
        self._refuses = False
        self._flows.set()

    def truncate(self, after: int) -> None:
        with self._lock:
            self._truncate_after = after

    def corrupt(self, after: int) -> None:
        with self._lock:
            self._corrupt_after = after

    def close(self) -> None:
        self._closed = True
        self._flows.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            near.settimeout(None)
            if self._refuses:
                self.refused += 1
                _reset(near)
                continue
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((near, far))
                self.connections += 1
            self._start(self._forward, near, far, True)
            self._start(self._forward, far, near, False)

    def _forward(self, source: socket.socket, sink: socket.socket, to_target: bool) -> None:
        try:
            while data := source.recv(PIECE):
                self._flows.wait()
                ends = False
                if to_target:
                    data, ends = self._spoil(data)
                sink.sendall(data)
                if ends:
                    break
        except OSError:
            pass
        # A half-closed connection stays half-closed: the other direction may continue.
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _spoil(self, data: bytes) -> tuple[bytes, bool]:
        """Return `data` after corruption and truncation, and whether the connection ends after it."""
        with self._lock:
            self.forwarded += len(data)
            if self._corrupt_after is not None:
                if self._corrupt_after < len(data):
                    at = self._corrupt_after
                    data = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
                    self._corrupt_after = None
                else:
                    self._corrupt_after -= len(data)
            if self._truncate_after is not None:
                if self._truncate_after < len(data):
                    data, self._truncate_after = data[: self._truncate_after], None
                    return data, True
                self._truncate_after -= len(data)
        return data, False


def _reset(end: socket.socket) -> None:
    """Close the socket so that the peer gets a reset."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
