"""Connections that send much without a call that the server admits."""

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
    """A listening socket of this process, as gRPC's would be, and what watches its connections."""

    def __init__(self) -> None:
        self.now = 0.0
        self.connections = Connections(DisconnectionLog(), clock=lambda: self.now)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.listener.settimeout(10)

    def look(self, waited: float = 0.0) -> bool:
        return self.connections.check(self.address[1], waited)

    def connect(self, source: str = STRANGER, source_port: int = 0) -> socket.socket:
        return socket.create_connection(self.address, 0.5, source_address=(source, source_port))

    @contextlib.contextmanager
    def sent(self, count: int, source_port: int = 0) -> Iterator[str]:
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

    def has_room_for(self, source: str) -> bool:
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


def test_connections_that_end_after_much_block_their_address(port: Port) -> None:
    for _ in range(LIMIT):
        assert port.has_room_for(STRANGER)
        port.listener.accept()[0].close()
        with port.sent(REFUSED_BYTES + 1):
            port.look()
        port.look()
    assert not port.has_room_for(STRANGER)
    assert port.has_room_for(NEIGHBOUR)


@pytest.mark.parametrize(("count", "admitted"), [(REFUSED_BYTES, False), (STRANGER_BYTES + 1, True)])
def test_small_or_admitted_connections_that_end_block_nobody(port: Port, count: int, admitted: bool) -> None:
    for _ in range(LIMIT):
        with port.sent(count) as peer:
            port.look()
            if admitted:
                port.connections.note_admitted(peer)
        port.look()
    assert port.has_room_for(STRANGER)


def test_a_refused_connection_is_closed_at_fewer_bytes(port: Port) -> None:
    with port.sent(REFUSED_BYTES + 1) as peer:
        assert not port.look()
        port.connections.note_refused(peer)
        port.look()
        assert port.connections.closed[GREEDY] == 1


def test_a_connection_that_grpc_has_not_closed_yet_counts_once(port: Port) -> None:
    with port.sent(REFUSED_BYTES + 1) as peer:
        port.connections.note_refused(peer)
        for _ in range(LIMIT + 1):
            port.look()
        assert port.connections.closed[GREEDY] == 1
        assert port.has_room_for(STRANGER)


def test_a_new_connection_from_an_admitted_port_is_not_admitted(port: Port) -> None:
    with port.sent(1) as peer:
        port.connections.note_admitted(peer)
        port.look()
    with port.sent(REFUSED_BYTES + 1, int(peer.rpartition(":")[2])) as again:
        assert again == peer
        port.connections.note_refused(again)
        port.look()
        assert port.connections.closed[GREEDY] == 1


class SmallKernel:
    """A listening socket whose kernel has room for filters of this many instructions, old and new together."""

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


def test_a_kernel_with_little_memory_blocks_as_many_as_it_can(
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


def test_a_first_message_may_arrive_before_its_call_is_admitted(port: Port) -> None:
    with port.sent(2 * STRANGER_BYTES) as peer:
        assert port.look(), "it has to be looked at soon"
        port.connections.note_admitted(peer)
        port.now += OVER_SECONDS
        assert not port.look()
        assert port.connections.closed[GREEDY] == 0


def test_what_is_not_admitted_in_time_is_closed(port: Port) -> None:
    with port.sent(2 * STRANGER_BYTES):
        port.look()
        port.now += OVER_SECONDS
        assert port.look(waited=0.1), "its call may be one that waits for a thread"
        assert port.connections.closed[GREEDY] == 0
        port.look()
        assert port.connections.closed[GREEDY] == 1
