from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from relaax.parameters.interfaces import EXPLOIT, TRAIN
from relaax.server.parameter_server.service.registry import Registry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_workers_without_a_session_are_told_apart() -> None:
    registry = Registry()
    first, second = (registry.register(name, "", 2, TRAIN, 1) for name in ("w1", "w2"))
    assert (tuple(first.actors), tuple(second.actors)) == ((0, 1), (2, 3))
    assert registry.register("w1", "", 2, TRAIN, 1) is first


def test_a_silent_worker_is_not_connected_and_after_long_forgotten() -> None:
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


def test_one_that_came_first_and_is_heard_of_keeps_nobody_from_being_forgotten() -> None:
    clock = Clock()
    registry = Registry(remove_after=3600, clock=clock)
    registry.register("a", "", 1, TRAIN, 1)
    registry.register("b", "", 1, TRAIN, 1)
    clock.now = 3000
    assert registry.record_call("a") is not None
    clock.now = 3700
    assert registry.remove_silent() == ["b"]
    # The same where there are too many: the place is lost by who was silent for longest.
    small = Registry(capacity=2)
    for name in ("a", "b", "a", "c"):
        small.register(name, "", 1, TRAIN, 1)
    assert small.remove_silent() == ["b"]


def test_too_many_workers_cost_the_longest_silent_its_place() -> None:
    registry = Registry(capacity=2)
    for name in ("a", "b", "c"):
        registry.register(name, "", 1, TRAIN, 1)
    assert registry.remove_silent() == ["a"]


def test_a_report_is_counted_once() -> None:
    registry = Registry()
    worker = registry.register("a", "", 1, EXPLOIT, 1)
    assert [registry.accept_report(worker, number) for number in (1, 1, 2, 1)] == [True, False, True, False]


def test_a_session_that_came_and_did_nothing_keeps_no_indices() -> None:
    registry = Registry()
    registry.register("idle", "x", 2, TRAIN, 1)
    assert registry.record_call("idle", deregisters=True) is not None
    registry.remove("idle")
    assert tuple(registry.register("busy", "y", 1, TRAIN, 1).actors) == (0,)
    registry.record_call("busy")
    registry.remove("busy")
    assert tuple(registry.register("next", "z", 1, TRAIN, 1).actors) == (1,)
    assert registry.actors_as_json() == {"y": [[0, 1]], "z": [[1, 1]]}


def test_a_session_that_another_worker_has_keeps_its_indices() -> None:
    registry = Registry()
    registry.register("first", "x", 1, TRAIN, 1)
    registry.register("second", "x", 1, TRAIN, 1)
    registry.remove("first")
    assert tuple(registry.register("other", "y", 1, TRAIN, 1).actors) == (1,)


def test_a_worker_that_registered_and_was_never_heard_of_again_keeps_no_indices() -> None:
    clock = Clock()
    registry = Registry(remove_after=10.0, clock=clock)
    registry.register("killed", "x", 1, TRAIN, 1)
    clock.now = 11.0
    assert registry.remove_silent() == ["killed"]
    assert registry.actors_as_json() == {}


def test_indices_of_a_session_that_is_away_are_kept_for_an_hour_and_then_are_others() -> None:
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


def test_a_worker_that_was_silent_for_an_hour_takes_its_indices_with_it() -> None:
    clock = Clock()
    registry = Registry(remove_after=3600.0, clock=clock)
    registry.register("killed", "x", 2, TRAIN, 1)
    registry.record_call("killed")
    clock.now = 3601.0
    assert registry.remove_silent() == ["killed"]
    assert registry.actors_as_json() == {}


def test_after_a_roll_back_every_session_has_its_own_again() -> None:
    registry = Registry()
    for session in ("x", "y"):
        registry.register(session, session, 2, TRAIN, 1)
        registry.record_call(session)
    assert registry.clear() == ["x", "y"]
    assert tuple(registry.register("new", "z", 1, TRAIN, 1).actors) == (4,)
    assert tuple(registry.register("again", "y", 2, TRAIN, 1).actors) == (2, 3)


def test_one_worker_that_registers_in_many_threads_at_once_is_one() -> None:
    registry = Registry()
    with ThreadPoolExecutor(8) as pool:
        workers = list(pool.map(lambda _: registry.register("w", "x", 2, TRAIN, 1), range(64)))
    assert all(worker is workers[0] for worker in workers)
    registry.record_call("w")
    registry.remove("w")
    assert tuple(registry.register("other", "y", 1, TRAIN, 1).actors) == (2,), "x is away, not gone"
    assert tuple(registry.register("w", "x", 2, TRAIN, 1).actors) == (0, 1)


def test_a_worker_whose_session_has_come_back_is_not_connected_until_it_is_heard_again() -> None:
    registry = Registry()
    for name, session in (("a", "s"), ("other", "t"), ("b", "s")):
        registry.register(name, session, 1, TRAIN, 1)
    assert registry.count() == 2
    assert registry.record_call("a") is not None, "it was not killed: two connections may say one session"
    assert registry.count() == 3


def test_a_worker_that_is_lost_is_not_connected_until_it_is_heard_again() -> None:
    registry = Registry()
    for name in ("a", "b"):
        registry.register(name, "", 1, TRAIN, 1)
    registry.mark_lost("a")
    registry.mark_lost("nobody")
    assert registry.count() == 1
    assert registry.record_call("a") is not None
    assert registry.count() == 2
