from __future__ import annotations

from relaax.metrics import Fleet
from relaax.metrics.fleet import KNOWN_AT_MOST


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_values_per_worker_and_over_all_workers() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    fleet.note(
        "a", 0, 30, [("worker/memory_mb", 40.0), ("server/memory_mb", 5.0), ("machine/available_memory_mb", 9.0)]
    )
    fleet.note(
        "b", 8, 10, [("worker/memory_mb", 50.0), ("server/memory_mb", 7.0), ("machine/available_memory_mb", 8.0)]
    )
    clock.now += 2
    fleet.note("a", 0, 30, [("made/up", 1.0)])
    assert fleet.scalars() == {
        "system/worker_memory_mb/mean": 45.0,
        "system/worker_memory_mb/max": 50.0,
        "system/rlx_server_memory_mb": 7.0,
        "system/available_memory_mb": 8.0,
        "workers/memory_mb/0": 40.0,
        "workers/steps_per_second/0": 30.0,
        "workers/memory_mb/8": 50.0,
        "workers/steps_per_second/8": 5.0,
    }


def test_no_values_without_reports_of_workers() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    assert fleet.scalars() == {}
    fleet.note("a", 0, 10, [])
    clock.now += 1
    assert fleet.scalars() == {"workers/steps_per_second/0": 10.0}
    clock.now += 1
    assert fleet.scalars() == {}


def test_steps_are_counted_since_last_call() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    for steps, seconds, pace in ((10, 1, 10.0), (6, 2, 3.0), (8, 4, 2.0)):
        fleet.note("a", 0, steps, [])
        clock.now += seconds
        assert fleet.scalars() == {"workers/steps_per_second/0": pace}
    fleet.note("a", 0, 0, [("worker/memory_mb", 5.0)])
    clock.now += 1
    assert "workers/steps_per_second/0" not in fleet.scalars(), "it took no steps since the last call"


def test_removed_and_silent_workers_are_omitted() -> None:
    clock = Clock()
    fleet = Fleet(silence=10.0, clock=clock)
    for name, actor in (("a", 0), ("b", 1), ("c", 2)):
        fleet.note(name, actor, 0, [("worker/memory_mb", 10.0 * (actor + 1))])
    fleet.forget("a")
    fleet.forget("a")
    clock.now += 11
    fleet.note("c", 2, 0, [])
    assert fleet.scalars() == {
        "system/worker_memory_mb/mean": 30.0,
        "system/worker_memory_mb/max": 30.0,
        "workers/memory_mb/2": 30.0,
    }


def test_at_most_64_workers_have_own_values() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    for actor in range(100):
        fleet.note(str(actor), actor, 0, [("worker/memory_mb", float(actor))])
    clock.now += 1
    values = fleet.scalars()
    assert sum(name.startswith("workers/") for name in values) == 64
    assert values["system/worker_memory_mb/max"] == 99.0
    fleet.note("late", 200, 0, [("worker/memory_mb", 1.0)])
    clock.now += 1
    assert "workers/memory_mb/200" not in fleet.scalars()


def test_workers_that_reported_first_are_shown() -> None:
    clock = Clock()
    fleet = Fleet(clock=clock)
    for actor in range(1000, 1064):
        fleet.note(str(actor), actor, 0, [("worker/memory_mb", 1.0)])
    clock.now += 1
    fleet.scalars()
    fleet.note("0", 0, 0, [("worker/memory_mb", 2.0)])
    clock.now += 1
    shown = [name for name in fleet.scalars() if name.startswith("workers/")]
    assert shown == [f"workers/memory_mb/{actor}" for actor in range(1000, 1064)]


def test_oldest_worker_is_dropped_beyond_limit() -> None:
    fleet = Fleet()
    for number in range(KNOWN_AT_MOST + 2):
        fleet.note(f"w{number}", number, 1, [("worker/memory_mb", float(number == 1))])
    assert len(fleet._workers) == KNOWN_AT_MOST
    assert fleet.scalars()["system/worker_memory_mb/max"] == 0.0
