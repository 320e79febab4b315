"""Tests of the order in which waiting connections get a worker, with real sockets and a simulated clock."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from relaax.server.rlx_server.listening.admission import NEW_SECONDS, STALE_SECONDS, AdmissionQueue
from relaax.server.rlx_server.listening.pending_connections import PendingState


class Scene:
    """An admission queue with connected clients and a simulated clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waiting = AdmissionQueue(lambda: self.now)
        self._listening = socket.create_server(("0.0.0.0", 0))
        self._clients: dict[socket.socket, socket.socket] = {}

    def add(self, host: str = "127.0.0.1") -> socket.socket:
        """Connect a client from `host` and queue it; return the server's end."""
        port = self._listening.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(host, 0))
        sock, _ = self._listening.accept()
        self._clients[sock] = client
        self.waiting.add(sock)
        return sock

    def half_close(self, sock: socket.socket) -> None:
        """Shut down sending at the client's end."""
        self._clients[sock].shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for sock, client in self._clients.items():
            sock.close()
            client.close()
        self._listening.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    created = Scene()
    yield created
    created.close()


CROWD = {"127.0.0.1": 20}


def serve_all(scene: Scene, crowd: dict[str, int]) -> list[socket.socket]:
    order = []
    while (sock := scene.waiting.next(crowd)) is not None:
        scene.waiting.remove(sock)
        order.append(sock)
    return order


def test_layered_connections_are_skipped_if_excluded(scene: Scene) -> None:
    layered, whole = scene.add(), scene.add()
    scene.waiting.remove(layered)
    scene.waiting.add(layered, PendingState.LAYERED)
    assert scene.waiting.next({}, layered=False) is whole
    scene.waiting.remove(whole)
    assert scene.waiting.next({}, layered=False) is None
    assert scene.waiting.next({}) is layered


def test_connections_are_served_in_order_of_arrival(scene: Scene) -> None:
    accepted = [scene.add() for _ in range(3)]
    scene.now += NEW_SECONDS + 1
    accepted.append(scene.add())
    assert len(scene.waiting) == 4
    assert serve_all(scene, {}) == accepted
    assert len(scene.waiting) == 0


def test_crowded_queue_serves_new_in_order_then_newest_first(scene: Scene) -> None:
    oldest = scene.add()
    scene.now += 1.0
    old = scene.add()
    scene.now += NEW_SECONDS + 0.1
    first = scene.add()
    scene.now += 0.5
    second = scene.add()
    assert serve_all(scene, CROWD) == [first, second, old, oldest]


def test_crowded_queue_serves_other_networks_first(scene: Scene) -> None:
    one = scene.add()
    other = scene.add("127.0.0.9")
    scene.now += 60.0
    new = scene.add()
    assert serve_all(scene, CROWD) == [other, new, one]


def test_stale_half_closed_connection_is_dropped(scene: Scene) -> None:
    left, here = scene.add(), scene.add()
    scene.half_close(left)
    assert scene.waiting.next({}) is left, "a client may half-close after its hello and still read"
    scene.now += STALE_SECONDS
    assert scene.waiting.next({}) is here
    assert left.fileno() == -1
    assert len(scene.waiting) == 1


def test_drop_oldest_closes_the_oldest_connection(scene: Scene) -> None:
    oldest, other = scene.add(), scene.add()
    assert scene.waiting.drop_oldest()
    assert oldest.fileno() == -1
    assert list(scene.waiting) == [other]
    assert scene.waiting.drop_oldest()
    assert not scene.waiting.drop_oldest()
