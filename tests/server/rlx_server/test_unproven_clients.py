"""Places of clients that have proved nothing: who has one, and who loses it, by a clock of the test's own."""

from __future__ import annotations

import math
from itertools import count

import pytest

from relaax.server.rlx_server.listening.admission import EXTRA_PLACES, TURN_SECONDS, UNPROVEN_SECONDS, UnprovenClients

FREE_PLACES = 4


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.places = UnprovenClients(FREE_PLACES, lambda: self.now)
        self._pids = count(1)

    def record_welcome(self, host: str = "10.0.0.1") -> int:
        """One more client is let in and welcomed, and says no init."""
        pid = next(self._pids)
        self.places.admit(pid, host)
        self.places.record_welcome(pid)
        return pid

    def fill(self, places: int, host: str = "10.0.0.1") -> list[int]:
        return [self.record_welcome(host) for _ in range(places)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_free_places_are_taken_at_once(scene: Scene) -> None:
    for handshakes in range(FREE_PLACES):
        assert scene.places.delay(handshakes) == 0
        assert scene.places.reserve(handshakes) is None
        assert not scene.places.crowd(handshakes)


@pytest.mark.parametrize("unproven", [0, 2, FREE_PLACES])
def test_further_ones_in_turn(scene: Scene, unproven: int) -> None:
    scene.fill(unproven)
    handshakes = FREE_PLACES - unproven
    assert scene.places.delay(handshakes) == 0
    assert scene.places.reserve(handshakes) is None
    assert scene.places.delay(handshakes) == pytest.approx(TURN_SECONDS)
    assert scene.places.delay(handshakes - 1) == 0, "a place that became free is taken at once"
    scene.now += TURN_SECONDS
    assert scene.places.delay(handshakes) == 0


def test_past_all_places_the_oldest_makes_room_once_it_has_had_its_time(scene: Scene) -> None:
    first = scene.record_welcome()
    scene.now += 0.5
    scene.fill(FREE_PLACES + EXTRA_PLACES - 1)
    assert scene.places.delay(0) == pytest.approx(UNPROVEN_SECONDS - 0.5)
    scene.now += UNPROVEN_SECONDS - 0.5
    assert scene.places.delay(0) == 0
    assert scene.places.reserve(0) == first
    scene.places.remove(first)
    scene.now += 1.0
    scene.record_welcome()
    assert scene.places.delay(0) == 0
    assert scene.places.reserve(0) == first + 1


def test_the_network_with_most_makes_room(scene: Scene) -> None:
    scene.fill(3, "10.0.0.7")
    crowd = scene.fill(FREE_PLACES + EXTRA_PLACES - 3, "2001:db8::1")
    scene.now += UNPROVEN_SECONDS
    assert scene.places.reserve(0) == crowd[0]
    assert scene.places.crowd(0) == {"10.0.0.7": 3, "2001:db8::/64": FREE_PLACES + EXTRA_PLACES - 3}


def test_who_proves_that_it_reads_has_no_place_to_lose(scene: Scene) -> None:
    pids = scene.fill(FREE_PLACES + EXTRA_PLACES)
    for pid in pids[1:]:
        scene.places.remove(pid)
    assert scene.places.delay(0) == 0
    assert not scene.places.crowd(0)
    assert len(scene.places) == 1
    assert pids[0] in scene.places
    assert pids[1] not in scene.places


def test_who_waits_for_the_parameter_server_has_a_place_for_a_moment_only(scene: Scene) -> None:
    for pid in range(FREE_PLACES + EXTRA_PLACES):
        scene.places.admit(pid, "10.0.0.1")
    assert scene.places.delay(0) == math.inf
    scene.now += UNPROVEN_SECONDS
    assert scene.places.delay(0) == 0
    assert scene.places.choose_eviction() is None, "and is ended by nobody"
    scene.places.record_welcome(0)
    scene.places.record_welcome(0)  # a second time: that changes nothing
    scene.now += UNPROVEN_SECONDS
    assert scene.places.choose_eviction() == 0


def test_where_there_is_no_other_room_one_makes_room_each_turn(scene: Scene) -> None:
    assert scene.places.choose_eviction() is None
    first, second = scene.fill(2)
    assert scene.places.choose_eviction() is None
    scene.now += UNPROVEN_SECONDS
    assert scene.places.choose_eviction() == first
    scene.places.remove(first)
    assert scene.places.choose_eviction() is None
    scene.now += TURN_SECONDS
    assert scene.places.choose_eviction() == second
