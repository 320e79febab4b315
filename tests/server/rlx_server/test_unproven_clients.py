"""Tests of the places of unproven clients and of their eviction, with a simulated clock."""

from __future__ import annotations

import math
from itertools import count

import pytest

from relaax.server.rlx_server.listening.admission import EXTRA_PLACES, TURN_SECONDS, UNPROVEN_SECONDS, UnprovenClients

FREE_PLACES = 4


class Scene:
    """The places of unproven clients, with a simulated clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.places = UnprovenClients(FREE_PLACES, lambda: self.now)
        self._pids = count(1)

    def record_welcome(self, host: str = "10.0.0.1") -> int:
        """Admit and welcome one more client that sends no init; return the process id of its worker."""
        pid = next(self._pids)
        self.places.admit(pid, host)
        self.places.record_welcome(pid)
        return pid

    def fill(self, places: int, host: str = "10.0.0.1") -> list[int]:
        return [self.record_welcome(host) for _ in range(places)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_free_places_are_given_without_delay(scene: Scene) -> None:
    for handshakes in range(FREE_PLACES):
        assert scene.places.delay(handshakes) == 0
        assert scene.places.reserve(handshakes) is None
        assert not scene.places.crowd(handshakes)


@pytest.mark.parametrize("unproven", [0, 2, FREE_PLACES])
def test_extra_places_are_given_one_per_turn(scene: Scene, unproven: int) -> None:
    scene.fill(unproven)
    handshakes = FREE_PLACES - unproven
    assert scene.places.delay(handshakes) == 0
    assert scene.places.reserve(handshakes) is None
    assert scene.places.delay(handshakes) == pytest.approx(TURN_SECONDS)
    assert scene.places.delay(handshakes - 1) == 0, "a freed place is given at once"
    scene.now += TURN_SECONDS
    assert scene.places.delay(handshakes) == 0


def test_oldest_client_is_evicted_once_all_places_are_used(scene: Scene) -> None:
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


def test_client_of_the_largest_network_is_evicted(scene: Scene) -> None:
    scene.fill(3, "10.0.0.7")
    crowd = scene.fill(FREE_PLACES + EXTRA_PLACES - 3, "2001:db8::1")
    scene.now += UNPROVEN_SECONDS
    assert scene.places.reserve(0) == crowd[0]
    assert scene.places.crowd(0) == {"10.0.0.7": 3, "2001:db8::/64": FREE_PLACES + EXTRA_PLACES - 3}


def test_proven_client_frees_its_place(scene: Scene) -> None:
    pids = scene.fill(FREE_PLACES + EXTRA_PLACES)
    for pid in pids[1:]:
        scene.places.remove(pid)
    assert scene.places.delay(0) == 0
    assert not scene.places.crowd(0)
    assert len(scene.places) == 1
    assert pids[0] in scene.places
    assert pids[1] not in scene.places


def test_admitted_client_without_welcome_is_not_evicted(scene: Scene) -> None:
    for pid in range(FREE_PLACES + EXTRA_PLACES):
        scene.places.admit(pid, "10.0.0.1")
    assert scene.places.delay(0) == math.inf
    scene.now += UNPROVEN_SECONDS
    assert scene.places.delay(0) == 0
    assert scene.places.choose_eviction() is None, "only welcomed clients are evicted"
    scene.places.record_welcome(0)
    scene.places.record_welcome(0)  # a second welcome changes nothing
    scene.now += UNPROVEN_SECONDS
    assert scene.places.choose_eviction() == 0


def test_at_most_one_client_per_turn_is_evicted(scene: Scene) -> None:
    assert scene.places.choose_eviction() is None
    first, second = scene.fill(2)
    assert scene.places.choose_eviction() is None
    scene.now += UNPROVEN_SECONDS
    assert scene.places.choose_eviction() == first
    scene.places.remove(first)
    assert scene.places.choose_eviction() is None
    scene.now += TURN_SECONDS
    assert scene.places.choose_eviction() == second
