"""Who of those that wait for a worker is next: real sockets, and a clock of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from relaax.server.rlx_server.listening.admission import NEW_SECONDS, STALE_SECONDS, AdmissionQueue
from relaax.server.rlx_server.listening.pending_connections import PendingState


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.waiting = AdmissionQueue(lambda: self.now)
        self._listening = socket.create_server(("0.0.0.0", 0))
        self._clients: dict[socket.socket, socket.socket] = {}

    def add(self, host: str = "127.0.0.1") -> socket.socket:
        """A connection from `host`; the server's end of it."""
        port = self._listening.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(host, 0))
        sock, _ = self._listening.accept()
        self._clients[sock] = client
        self.waiting.add(sock)
        return sock

    def leave(self, sock: socket.socket) -> None:
        """Its client does."""
        self._clients[sock].shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for sock, client in self._clients.items():
            sock.close()
            client.close()
        self._listening.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


CROWD = {"127.0.0.1": 20}


def served(scene: Scene, crowd: dict[str, int]) -> list[socket.socket]:
    order = []
    while (sock := scene.waiting.next(crowd)) is not None:
        scene.waiting.remove(sock)
        order.append(sock)
    return order


def test_without_layers_whole_hellos_are_served_only(scene: Scene) -> None:
    layered, whole = scene.add(), scene.add()
    scene.waiting.remove(layered)
    scene.waiting.add(layered, PendingState.LAYERED)
    assert scene.waiting.next({}, layered=False) is whole
    scene.waiting.remove(whole)
    assert scene.waiting.next({}, layered=False) is None
    assert scene.waiting.next({}) is layered


def test_first_come_first_served(scene: Scene) -> None:
    came = [scene.add() for _ in range(3)]
    scene.now += NEW_SECONDS + 1
    came.append(scene.add())
    assert len(scene.waiting) == 4
    assert served(scene, {}) == came
    assert len(scene.waiting) == 0


def test_beside_a_crowd_new_ones_come_first_in_turn_and_then_the_newest(scene: Scene) -> None:
    oldest = scene.add()
    scene.now += 1.0
    old = scene.add()
    scene.now += NEW_SECONDS + 0.1
    first = scene.add()
    scene.now += 0.5
    second = scene.add()
    assert served(scene, CROWD) == [first, second, old, oldest]


def test_beside_a_crowd_those_of_another_network_come_first(scene: Scene) -> None:
    one = scene.add()
    other = scene.add("127.0.0.9")
    scene.now += 60.0
    new = scene.add()
    assert served(scene, CROWD) == [other, new, one]


def test_who_has_left_long_ago_is_not_served(scene: Scene) -> None:
    left, here = scene.add(), scene.add()
    scene.leave(left)
    assert scene.waiting.next({}) is left, "it may have said all it has to say, and listen"
    scene.now += STALE_SECONDS
    assert scene.waiting.next({}) is here
    assert left.fileno() == -1
    assert len(scene.waiting) == 1


def test_the_oldest_makes_room(scene: Scene) -> None:
    oldest, other = scene.add(), scene.add()
    assert scene.waiting.drop_oldest()
    assert oldest.fileno() == -1
    assert list(scene.waiting) == [other]
    assert scene.waiting.drop_oldest()
    assert not scene.waiting.drop_oldest()
