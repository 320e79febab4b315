from __future__ import annotations

import json

from relaax.server.parameter_server.registry import ActorTable, Registry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_that_comes_back_gets_its_actors_again() -> None:
    table = ActorTable()
    assert table.allot("a", 2) == (0, 1)
    assert table.allot("b", 1) == (2,)
    assert table.allot("a", 3) == (0, 1, 3)
    assert table.allot("a", 1) == (0,)
    restored = ActorTable()
    restored.restore(json.loads(json.dumps(table.as_json())))
    assert restored.allot("b", 1) == (2,)
    assert restored.allot("c", 1) == (4,)


def test_very_many_sessions_share_the_indices_of_the_longest_absent() -> None:
    table = ActorTable(capacity=2)
    table.allot("a", 1)
    table.allot("b", 1)
    table.allot("a", 1)
    table.allot("c", 1)  # b goes
    assert table.allot("d", 1) == (1,)


def test_workers_without_a_session_are_told_apart() -> None:
    registry = Registry()
    first, second = (registry.register(name, "", 2, False, 1) for name in ("w1", "w2"))
    assert (first.actors, second.actors) == ((0, 1), (2, 3))
    assert registry.register("w1", "", 2, False, 1) is first


def test_a_silent_worker_is_not_connected_and_after_long_forgotten() -> None:
    clock = Clock()
    registry = Registry(silence=60, forget_after=3600, clock=clock)
    registry.register("a", "", 1, False, 1)
    registry.register("b", "", 1, False, 1)
    clock.now = 50
    assert registry.hear("a") is not None
    clock.now = 70
    assert registry.connected == 1
    assert registry.forgotten() == []
    assert registry.hear("b") is not None
    assert registry.connected == 2
    clock.now = 3660
    assert registry.forgotten() == ["a"]
    assert registry.hear("a") is None
    assert registry.leave("b") is not None
    assert registry.leave("b") is None
    assert registry.connected == 0


def test_one_that_came_first_and_is_heard_of_keeps_nobody_from_being_forgotten() -> None:
    clock = Clock()
    registry = Registry(forget_after=3600, clock=clock)
    registry.register("a", "", 1, False, 1)
    registry.register("b", "", 1, False, 1)
    clock.now = 3000
    assert registry.hear("a") is not None
    clock.now = 3700
    assert registry.forgotten() == ["b"]
    # The same where there are too many: the place is lost by who was silent for longest.
    small = Registry(capacity=2)
    for name in ("a", "b", "a", "c"):
        small.register(name, "", 1, False, 1)
    assert small.forgotten() == ["b"]


def test_too_many_workers_cost_the_longest_silent_its_place() -> None:
    registry = Registry(capacity=2)
    for name in ("a", "b", "c"):
        registry.register(name, "", 1, False, 1)
    assert registry.forgotten() == ["a"]


def test_a_report_is_counted_once() -> None:
    registry = Registry()
    worker = registry.register("a", "", 1, True, 1)
    assert [registry.new_report(worker, number) for number in (1, 1, 2, 1)] == [True, False, True, False]


def test_a_session_that_came_and_did_nothing_keeps_no_indices() -> None:
    registry = Registry()
    registry.register("idle", "x", 2, False, 1)
    assert registry.hear("idle", leaves=True) is not None
    registry.leave("idle")
    assert registry.register("busy", "y", 1, False, 1).actors == (0,)
    registry.hear("busy")
    registry.leave("busy")
    assert registry.register("next", "z", 1, False, 1).actors == (1,)
    assert registry.actors_as_json() == {"y": [0], "z": [1]}


def test_a_session_that_another_worker_has_keeps_its_indices() -> None:
    registry = Registry()
    registry.register("first", "x", 1, False, 1)
    registry.register("second", "x", 1, False, 1)
    registry.leave("first")
    assert registry.register("other", "y", 1, False, 1).actors == (1,)


def test_a_worker_that_registered_and_was_never_heard_of_again_keeps_no_indices() -> None:
    clock = Clock()
    registry = Registry(forget_after=10.0, clock=clock)
    registry.register("killed", "x", 1, False, 1)
    clock.now = 11.0
    assert registry.forgotten() == ["killed"]
    assert registry.actors_as_json() == {}
