from __future__ import annotations

from relaax.parameters.interfaces import EXPLOIT, LEARN, TRAIN
from relaax.server.parameter_server.service.actors import HOLD, ActorRanks
from relaax.server.parameter_server.service.registry import Registry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ranks_have_no_gaps_and_follow_actor_indices() -> None:
    ranks = ActorRanks()
    for worker, first_actor in (("b", 70), ("c", 300), ("a", 4)):
        ranks.add(worker, worker, first_actor, 2)
    assert [ranks.rank_of(worker) for worker in ("a", "b", "c", "unknown")] == [(0, 6), (2, 6), (4, 6), (0, 6)]
    ranks.add("a", "a", 4, 2)
    assert ranks.rank_of("a") == (0, 6), "adding a worker again changes nothing"


def test_ranks_move_up_after_the_hold_of_a_removed_worker() -> None:
    clock = Clock()
    ranks = ActorRanks(clock=clock)
    for number, worker in enumerate("abc"):
        ranks.add(worker, worker, 4 * number, 4)
    clock.now = 5.0
    ranks.remove("a")
    ranks.remove("a")
    clock.now = 5.0 + HOLD - 0.1
    assert [ranks.rank_of(worker) for worker in "bc"] == [(4, 12), (8, 12)]
    clock.now = 5.0 + HOLD
    assert [ranks.rank_of(worker) for worker in "bc"] == [(0, 8), (4, 8)]


def test_session_that_reconnects_in_time_changes_no_rank() -> None:
    clock = Clock()
    ranks = ActorRanks(clock=clock)
    ranks.add("a", "session of a", 0, 4)
    ranks.add("b", "session of b", 4, 4)
    ranks.remove("a")
    clock.now = 3.0
    ranks.add("a again", "session of a", 0, 4)
    assert [ranks.rank_of(worker) for worker in ("a again", "b")] == [(0, 8), (4, 8)]
    clock.now = 3.0 + HOLD
    assert [ranks.rank_of(worker) for worker in ("a again", "b")] == [(0, 8), (4, 8)], "held ranks are used once"


def register_workers(registry: Registry, *names: str, environments: int = 4) -> None:
    for name in names:
        registry.register(name, f"session of {name}", environments, TRAIN, 1)
        registry.record_call(name)


def test_absent_exploit_and_learner_sessions_have_no_rank() -> None:
    first = Registry()
    register_workers(first, "a", "b")
    resumed = Registry()
    resumed.restore_actors(first.actors_as_json())
    resumed.register("exploit", "exploiting session", 64, EXPLOIT, 1)
    resumed.register("learner", "", 0, LEARN, 1)
    for worker in ("exploit", "learner"):
        resumed.record_call(worker)
    register_workers(resumed, "c", "d")
    assert [resumed.ranks(worker) for worker in ("c", "d")] == [(0, 8), (4, 8)]
    assert resumed.ranks("exploit") == (0, 8)


def test_worker_has_no_rank_before_its_first_call() -> None:
    registry = Registry()
    register_workers(registry, "a")
    registry.register("b", "", 4, TRAIN, 1)
    assert registry.ranks("a") == (0, 4)
    registry.record_call("b", deregisters=True)
    assert registry.ranks("a") == (0, 4)
    registry.record_call("b")
    assert registry.ranks("a") == (0, 8)


def test_removed_lost_and_silent_workers_lose_their_ranks() -> None:
    clock = Clock()
    registry = Registry(remove_after=3600.0, clock=clock)
    register_workers(registry, "removed", "lost", "replaced", "silent", "active")
    assert registry.ranks("active") == (16, 20)
    registry.remove("removed")
    registry.mark_lost("lost")
    registry.register("its second worker", "session of replaced", 4, TRAIN, 1)
    clock.now = 3599.0
    registry.record_call("active")
    clock.now = 3601.0
    assert registry.remove_silent() == ["lost", "replaced", "silent", "its second worker"]
    clock.now = 3601.0 + HOLD
    assert registry.ranks("active") == (0, 4)
    registry.clear()
    register_workers(registry, "new")
    assert registry.ranks("new") == (0, 8), "after a roll-back, absent sessions hold their ranks for a while"
    clock.now += HOLD
    assert registry.ranks("new") == (0, 4)


def test_lost_worker_regains_its_rank_with_a_call() -> None:
    clock = Clock()
    registry = Registry(clock=clock)
    register_workers(registry, "a", "b")
    registry.mark_lost("a")
    clock.now = HOLD
    assert registry.ranks("b") == (0, 4)
    registry.record_call("a")
    assert [registry.ranks(worker) for worker in "ab"] == [(0, 8), (4, 8)]
