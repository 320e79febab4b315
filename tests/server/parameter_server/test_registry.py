from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from relaax.parameters.interfaces import EXPLOIT, TRAIN
from relaax.server.parameter_server.service.registry import Registry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_workers_without_a_session_have_separate_actors() -> None:
    registry = Registry()
    first, second = (registry.register(name, "", 2, TRAIN, 1) for name in ("w1", "w2"))
    assert (tuple(first.actors), tuple(second.actors)) == ((0, 1), (2, 3))
    assert registry.register("w1", "", 2, TRAIN, 1) is first


def test_silent_worker_is_not_connected_and_later_removed() -> None:
    clock = Clock()
    registry = Registry(silence=60, remove_after=3600, clock=clock)
    registry.register("a", "", 1, TRAIN, 1)
    registry.register("b", "", 1, TRAIN, 1)
    clock.now = 50
    assert registry.record_call("a") is not None
    clock.now = 70
    assert registry.count() == 1
    assert registry.remove_silent() == []
    assert registry.record_call("b") is not None
    assert registry.count() == 2
    clock.now = 3660
    assert registry.remove_silent() == ["a"]
    assert registry.record_call("a") is None
    assert registry.remove("b") is not None
    assert registry.remove("b") is None
    assert registry.count() == 0


def test_silent_worker_is_removed_although_an_older_is_active() -> None:
    clock = Clock()
    registry = Registry(remove_after=3600, clock=clock)
    registry.register("a", "", 1, TRAIN, 1)
    registry.register("b", "", 1, TRAIN, 1)
    clock.now = 3000
    assert registry.record_call("a") is not None
    clock.now = 3700
    assert registry.remove_silent() == ["b"]
    # A full registry also removes the longest silent worker.
    small = Registry(capacity=2)
    for name in ("a", "b", "a", "c"):
        small.register(name, "", 1, TRAIN, 1)
    assert small.remove_silent() == ["b"]


def test_full_registry_removes_the_longest_silent_worker() -> None:
    registry = Registry(capacity=2)
    for name in ("a", "b", "c"):
        registry.register(name, "", 1, TRAIN, 1)
    assert registry.remove_silent() == ["a"]


def test_report_is_counted_once() -> None:
    registry = Registry()
    worker = registry.register("a", "", 1, EXPLOIT, 1)
    assert [registry.accept_report(worker, number) for number in (1, 1, 2, 1)] == [True, False, True, False]


def test_session_without_a_call_keeps_no_indices() -> None:
    registry = Registry()
    registry.register("idle", "x", 2, TRAIN, 1)
    assert registry.record_call("idle", deregisters=True) is not None
    registry.remove("idle")
    assert tuple(registry.register("busy", "y", 1, TRAIN, 1).actors) == (0,)
    registry.record_call("busy")
    registry.remove("busy")
    assert tuple(registry.register("next", "z", 1, TRAIN, 1).actors) == (1,)
    assert registry.actors_as_json() == {"y": [[0, 1]], "z": [[1, 1]]}


def test_session_shared_with_another_worker_keeps_indices() -> None:
    registry = Registry()
    registry.register("first", "x", 1, TRAIN, 1)
    registry.register("second", "x", 1, TRAIN, 1)
    registry.remove("first")
    assert tuple(registry.register("other", "y", 1, TRAIN, 1).actors) == (1,)


def test_silent_worker_without_a_call_keeps_no_indices() -> None:
    clock = Clock()
    registry = Registry(remove_after=10.0, clock=clock)
    registry.register("killed", "x", 1, TRAIN, 1)
    clock.now = 11.0
    assert registry.remove_silent() == ["killed"]
    assert registry.actors_as_json() == {}


def test_indices_of_a_disconnected_session_expire_in_an_hour() -> None:
    clock = Clock()
    registry = Registry(remove_after=3600.0, clock=clock)
    for session, environments in (("x", 2), ("y", 3)):
        registry.register(session, session, environments, TRAIN, 1)
        registry.record_call(session)
    registry.remove("x")
    clock.now = 3599.0
    registry.record_call("y")
    assert tuple(registry.register("x again", "x", 2, TRAIN, 1).actors) == (0, 1)
    registry.remove("x again")
    clock.now = 2 * 3599.0 + 2
    assert tuple(registry.register("z", "z", 1, TRAIN, 1).actors) == (0,)
    assert registry.actors_as_json() == {"y": [[2, 3]], "z": [[0, 1]]}


def test_indices_of_a_worker_silent_for_an_hour_are_freed() -> None:
    clock = Clock()
    registry = Registry(remove_after=3600.0, clock=clock)
    registry.register("killed", "x", 2, TRAIN, 1)
    registry.record_call("killed")
    clock.now = 3601.0
    assert registry.remove_silent() == ["killed"]
    assert registry.actors_as_json() == {}


def test_sessions_keep_their_indices_after_a_roll_back() -> None:
    registry = Registry()
    for session in ("x", "y"):
        registry.register(session, session, 2, TRAIN, 1)
        registry.record_call(session)
    assert registry.clear() == ["x", "y"]
    assert tuple(registry.register("new", "z", 1, TRAIN, 1).actors) == (4,)
    assert tuple(registry.register("again", "y", 2, TRAIN, 1).actors) == (2, 3)


def test_concurrent_registrations_create_one_worker() -> None:
    registry = Registry()
    with ThreadPoolExecutor(8) as pool:
        workers = list(pool.map(lambda _: registry.register("w", "x", 2, TRAIN, 1), range(64)))
    assert all(worker is workers[0] for worker in workers)
    registry.record_call("w")
    registry.remove("w")
    assert tuple(registry.register("other", "y", 1, TRAIN, 1).actors) == (2,), "session x is disconnected, not removed"
    assert tuple(registry.register("w", "x", 2, TRAIN, 1).actors) == (0, 1)


def test_worker_with_a_taken_over_session_needs_a_call() -> None:
    registry = Registry()
    for name, session in (("a", "s"), ("other", "t"), ("b", "s")):
        registry.register(name, session, 1, TRAIN, 1)
    assert registry.count() == 2
    assert registry.record_call("a") is not None, "the worker still runs: two connections may name one session"
    assert registry.count() == 3


def test_lost_worker_is_not_connected_until_its_next_call() -> None:
    registry = Registry()
    for name in ("a", "b"):
        registry.register(name, "", 1, TRAIN, 1)
    registry.mark_lost("a")
    registry.mark_lost("unknown")
    assert registry.count() == 1
    assert registry.record_call("a") is not None
    assert registry.count() == 2
