"""A TCP proxy that can cut, truncate, delay, throttle, stall, and silently swallow data."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType

PIECE = 1 << 15


class _Pair:
    """One connection. `swallows`: the directions in which data is swallowed. True means to the target."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near, self.far = near, far
        self.swallows: set[bool] = set()
        self.flows = 2

    def reset(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self.near, self.far):
            with contextlib.suppress(OSError):
                end.close()


class Wire:
    """A forwarder of TCP connections from `address` to `target` (HOST:PORT), which may be set later.

    Delay, throttle, stall and truncation also apply to later connections, until `heal`. `swallow` applies only to the
    open connections, and `heal` does not end it.
    """

    def __init__(self) -> None:
        self.target = ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._delay = 0.0
        self._bytes_per_second = float("inf")
        self._truncate_after: int | None = None
        self.swallowed = 0
        """Bytes from the target that were swallowed since the last call of `swallow`."""
        self._closed = False
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self.heal()
        self.cut()
        self._acceptor.join(5)
        self._listener.close()

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            for pair in self._pairs:
                pair.reset()

    def truncate(self, after: int) -> None:
        """Forward `after` more bytes, counted over all connections and directions, then reset the last connection."""
        with self._lock:
            self._truncate_after = after

    def delay(self, seconds: float) -> None:
        """Delay every piece of data by `seconds`."""
        self._delay = seconds

    def throttle(self, bytes_per_second: float) -> None:
        """Limit the rate in each direction of each connection."""
        self._bytes_per_second = bytes_per_second

    def stall(self) -> None:
        """Stop forwarding."""
        self._flowing.clear()

    def swallow(self, *directions: bool) -> None:
        """Swallow all data of the open connections, as if a machine had vanished: without FIN or reset.

        `directions`: True means to the target.
        """
        with self._lock:
            self.swallowed = 0
            for pair in self._pairs:
                pair.swallows.update(directions)

    def heal(self) -> None:
        """End all faults except `swallow`."""
        with self._lock:
            self._truncate_after = None
        self._delay, self._bytes_per_second = 0.0, float("inf")
        self._flowing.set()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            host, _, port = self.target.rpartition(":")
            try:
                far = socket.create_connection((host, int(port)), timeout=10)
            except (OSError, ValueError):
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                near.close()
                continue
            for end in (near, far):
                end.settimeout(None)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(near, far)
            with self._lock:
                self._pairs.append(pair)
            for to_target in (True, False):
                threading.Thread(target=self._forward, args=(pair, to_target), daemon=True).start()

    def _forward(self, pair: _Pair, to_target: bool) -> None:
        source, sink = (pair.near, pair.far) if to_target else (pair.far, pair.near)
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                self._wait(len(data))
                if to_target in pair.swallows:
                    self.swallowed += 0 if to_target else len(data)
                    continue
                data, ends = self._truncated(data)
                sink.sendall(data)
                if ends:
                    pair.reset()
        if to_target not in pair.swallows:  # otherwise the end is swallowed too
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        with self._lock:
            pair.flows -= 1
            if not pair.flows:
                pair.close()
                self._pairs.remove(pair)

    def _wait(self, length: int) -> None:
        if seconds := self._delay + length / self._bytes_per_second:
            time.sleep(min(seconds, 2.0))
        self._flowing.wait()

    def _truncated(self, data: bytes) -> tuple[bytes, bool]:
        with self._lock:
            if self._truncate_after is None:
                return data, False
            if self._truncate_after < len(data):
                data, self._truncate_after = data[: self._truncate_after], None
                return data, True
            self._truncate_after -= len(data)
        return data, False
