"""Connections that send many bytes without an admitted call."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterator

import pytest

from relaax.server.ports import connections as address_filter
from relaax.server.ports.connections import (
    GREEDY,
    LIMIT,
    OVER_SECONDS,
    REFUSED_BYTES,
    STRANGER_BYTES,
    AddressFilter,
    Connections,
)
from relaax.server.security.strikes import DisconnectionLog

STRANGER, NEIGHBOUR = "127.0.0.9", "127.0.0.8"


class Port:
    """A listening socket like that of gRPC, and the `Connections` that check it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connections = Connections(DisconnectionLog(), clock=lambda: self.now)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.listener.settimeout(10)

    def check(self, waited: float = 0.0) -> bool:
        return self.connections.check(self.address[1], waited)

    def connect(self, source: str = STRANGER, source_port: int = 0) -> socket.socket:
        return socket.create_connection(self.address, 0.5, source_address=(source, source_port))

    @contextlib.contextmanager
    def connection_with(self, count: int, source_port: int = 0) -> Iterator[str]:
        """Send `count` bytes over a new connection; the context has its peer in gRPC's notation."""
        with self.connect(source_port=source_port) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # frees its port at once
            accepted, (host, port) = self.listener.accept()
            with accepted:
                client.sendall(bytes(count))
                received = 0
                while received < count:
                    received += len(accepted.recv(2**16))
                yield f"ipv4:{host}:{port}"

    def accepts(self, source: str) -> bool:
        try:
            self.connect(source).close()
        except TimeoutError:
            return False
        return True


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    with port.listener:
        yield port


def test_large_unadmitted_connections_block_their_address(port: Port) -> None:
    for _ in range(LIMIT):
        assert port.accepts(STRANGER)
        port.listener.accept()[0].close()
        with port.connection_with(REFUSED_BYTES + 1):
            port.check()
        port.check()
    assert not port.accepts(STRANGER)
    assert port.accepts(NEIGHBOUR)


@pytest.mark.parametrize(("count", "admitted"), [(REFUSED_BYTES, False), (STRANGER_BYTES + 1, True)])
def test_small_or_admitted_connections_block_no_address(port: Port, count: int, admitted: bool) -> None:
    for _ in range(LIMIT):
        with port.connection_with(count) as peer:
            port.check()
            if admitted:
                port.connections.note_admitted(peer)
        port.check()
    assert port.accepts(STRANGER)


def test_refused_connection_is_closed_at_fewer_bytes(port: Port) -> None:
    with port.connection_with(REFUSED_BYTES + 1) as peer:
        assert not port.check()
        port.connections.note_refused(peer)
        port.check()
        assert port.connections.closed[GREEDY] == 1


def test_connection_that_grpc_closes_late_counts_once(port: Port) -> None:
    with port.connection_with(REFUSED_BYTES + 1) as peer:
        port.connections.note_refused(peer)
        for _ in range(LIMIT + 1):
            port.check()
        assert port.connections.closed[GREEDY] == 1
        assert port.accepts(STRANGER)


def test_new_connection_from_an_admitted_port_is_not_admitted(port: Port) -> None:
    with port.connection_with(1) as peer:
        port.connections.note_admitted(peer)
        port.check()
    with port.connection_with(REFUSED_BYTES + 1, int(peer.rpartition(":")[2])) as again:
        assert again == peer
        port.connections.note_refused(again)
        port.check()
        assert port.connections.closed[GREEDY] == 1


class SmallKernel:
    """A listening socket whose kernel has memory for `room` filter instructions, old and new together."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.attached = 0

    def setsockopt(self, level: int, name: int, value: int | bytes) -> None:
        if not isinstance(value, bytes):
            self.attached = 0
            return
        (count, _) = struct.unpack("@HP", value)
        if self.attached + count > self._room:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        self.attached = count

    def detach(self) -> None:
        pass


def test_kernel_memory_limits_the_blocked_addresses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = SmallKernel(200)
    monkeypatch.setattr(address_filter, "_listeners", lambda port: [listener])
    addresses = AddressFilter(lambda: 0.0)
    for number in range(64):
        for _ in range(LIMIT):
            addresses.add(f"10.0.0.{number}")
        addresses.apply(1)
    assert 100 <= listener.attached <= 200
    assert "cannot block addresses" not in caplog.text


def test_first_message_may_arrive_before_its_call(port: Port) -> None:
    with port.connection_with(2 * STRANGER_BYTES) as peer:
        assert port.check(), "the connection must be checked again soon"
        port.connections.note_admitted(peer)
        port.now += OVER_SECONDS
        assert not port.check()
        assert port.connections.closed[GREEDY] == 0


def test_connection_without_an_admitted_call_is_closed(port: Port) -> None:
    with port.connection_with(2 * STRANGER_BYTES):
        port.check()
        port.now += OVER_SECONDS
        assert port.check(waited=0.1), "its call may be waiting for a thread"
        assert port.connections.closed[GREEDY] == 0
        port.check()
        assert port.connections.closed[GREEDY] == 1
