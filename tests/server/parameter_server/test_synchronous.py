"""Synchronous updates of a shard: the mean of the gradients of all workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import TargetInterval
from relaax.algorithm_base.config import Schedule
from relaax.nn.recycled_memory import own_memory
from relaax.optim.optimizers import RMSProp
from relaax.parameters.moments import Moments
from relaax.server.parameter_server.shard.shard import CannotShare, Push, PushResult, Shard
from relaax.server.parameter_server.shard.state import Discard
from relaax.server.parameter_server.shard.synchronous import Synchronization, SynchronousUpdates
from support.parameter_servers import Descent
from support.processes import wait_until

NEVER = 3600.0


def shard(size: int = 2, patience: float = NEVER, max_norm: float | None = None, **options: Any) -> Shard:
    schedule = options.pop("schedule", Schedule(1.0))
    constants = Synchronization(patience, max_norm)
    return Shard(np.zeros(size, np.float32), options.pop("optimizer", Descent()), schedule, synchronization=constants)


class Worker:
    """A worker that pushes to a shard and takes over the parameters of the answer."""

    def __init__(self, tested: Shard, name: str, environments: int = 1) -> None:
        self.shard, self.name, self.environments = tested, name, environments
        self.version = tested.counters.version
        self.pushes = 0

    def push(self, *gradient: float, repeat: bool = False, **changes: Any) -> PushResult:
        vector = np.array(gradient, np.float32) if gradient else None
        self.pushes += not repeat
        values = {"env_steps": 1, "frames": 1, "global_step": 0, "environments": self.environments, **changes}
        applied = self.shard.push(Push(self.name, self.pushes, self.version, vector, **values))
        if not applied.pending:
            self.version = applied.counters.version
        return applied

    def catch_up(self) -> None:
        self.version = self.shard.counters.version


def parameters(tested: Shard) -> list[float]:
    return [float(value) for value in tested.pull()[1]]


def pair(tested: Shard) -> tuple[Worker, Worker]:
    """Two workers that have contributed to the first update, of zeros."""
    one, two = Worker(tested, "one"), Worker(tested, "two", environments=3)
    one.push(0.0, 0.0)  # complete, because no other worker has pushed yet
    two.catch_up()
    two.push(0.0, 0.0)
    one.push(0.0, 0.0)
    two.catch_up()
    return one, two


def test_soft_target_moves_once_for_each_update() -> None:
    constants, target = Synchronization(NEVER, None), TargetInterval(updates=1, tau=0.5)
    tested = Shard(np.zeros(2, np.float32), Descent(), Schedule(1.0), synchronization=constants, target=target)
    one, two = pair(tested)
    before = tested.target
    assert before is not None
    assert one.push(4.0, 8.0).target is before
    last = two.push(0.0, 4.0)
    assert last.target is not None and last.target.generation == before.generation + 1
    assert last.target.vector.tolist() == [-0.5, -2.5], "half of the way to -1 and -5"


def test_update_is_the_mean_weighted_by_environments() -> None:
    tested = shard()
    one, two = pair(tested)
    version = tested.counters.version
    first = one.push(4.0, 8.0)
    assert (first.pending, first.parameters, first.counters.version) == (True, None, version)
    assert first.outcome.discard is Discard.NONE
    last = two.push(0.0, 4.0)
    assert (last.pending, last.counters.version) == (False, version + 1)
    assert last.parameters is not None
    np.testing.assert_array_equal(last.parameters, [-1.0, -5.0])
    assert (last.counters.env_steps, last.counters.discarded) == (5, 0)


def test_one_worker_updates_as_without_synchronization() -> None:
    rng = np.random.default_rng(1)
    synchronous, asynchronous = (
        shard(5, optimizer=RMSProp()),
        Shard(np.zeros(5, np.float32), RMSProp(), Schedule(1.0)),
    )
    workers = Worker(synchronous, "w", environments=7), Worker(asynchronous, "w", environments=7)
    for _ in range(5):
        gradient = rng.normal(size=5).astype(np.float32)
        for worker in workers:
            worker.push(*gradient)
    np.testing.assert_array_equal(synchronous.pull()[1], asynchronous.pull()[1])
    assert synchronous.counters == asynchronous.counters


def test_three_workers_equal_one_with_all_environments() -> None:
    rng = np.random.default_rng(2)
    tested, reference = (shard(6, max_norm=0.5, optimizer=RMSProp(), schedule=Schedule(0.05)) for _ in range(2))
    everyone = Worker(reference, "all", environments=12)
    workers = [Worker(tested, str(n), environments=n) for n in (1, 3, 8)]
    for worker in (everyone, *workers):  # all participate; the gradients of the last two are stale
        worker.push(*np.zeros(6))
    for _ in range(6):
        gradients = rng.normal(size=(12, 6)).astype(np.float32)  # of each environment
        everyone.push(*gradients.mean(0))
        for worker, part in zip(workers, np.split(gradients, [1, 4]), strict=True):
            worker.push(*part.mean(0))
        for worker in workers:
            worker.catch_up()
        assert tested.counters.version == reference.counters.version
        np.testing.assert_allclose(tested.pull()[1], reference.pull()[1], rtol=0, atol=1e-6)
    assert float(np.abs(tested.pull()[1]).min()) > 0.01


def test_norm_of_the_mean_is_limited_not_of_each_gradient() -> None:
    tested = shard(max_norm=5.0)
    one, two = Worker(tested, "one"), Worker(tested, "two")
    one.push(0.0, 0.0)
    two.catch_up()
    two.push(300.0, -400.0)
    one.push(-294.0, 408.0)  # the mean is (3, 4), with norm 5
    np.testing.assert_allclose(parameters(tested), [-3.0, -4.0], rtol=1e-6)
    two.catch_up()
    two.push(30.0, 40.0)
    one.push(30.0, 40.0)
    np.testing.assert_allclose(parameters(tested), [-6.0, -8.0], rtol=1e-6)


def test_stale_gradient_is_discarded_and_its_worker_awaited() -> None:
    tested = shard()
    one, late = Worker(tested, "one"), Worker(tested, "late")
    one.push(1.0, 0.0)
    stale = late.push(100.0, 100.0)
    assert (stale.outcome.discard, stale.outcome.staleness, stale.pending) == (Discard.STALE, 1, False)
    assert stale.parameters is not None and stale.counters.discarded_stale == 1
    np.testing.assert_array_equal(stale.parameters, [-1.0, 0.0])
    assert one.push(1.0, 0.0).pending
    assert late.push(3.0, 2.0).counters.version == 2
    assert parameters(tested) == [-3.0, -1.0]


def test_worker_is_not_awaited_before_its_first_push() -> None:
    tested = shard()
    one, joining = Worker(tested, "one"), Worker(tested, "joining")
    assert [one.push(1.0, 1.0).pending for _ in range(3)] == [False] * 3
    joining.catch_up()
    assert joining.push(2.0, 2.0).pending
    assert not one.push(0.0, 0.0).pending
    assert parameters(tested) == [-4.0, -4.0]


def test_repeated_contribution_counts_once() -> None:
    tested = shard()
    one, two = pair(tested)
    one.push(4.0, 0.0)
    again = one.push(4.0, 0.0, repeat=True)
    assert (again.repeated, again.pending, again.parameters) == (True, True, None)
    two.push(0.0, 0.0)
    assert parameters(tested) == [-1.0, 0.0]
    late = one.push(4.0, 0.0, repeat=True)
    assert (late.repeated, late.pending) == (True, False)
    assert late.parameters is not None
    np.testing.assert_array_equal(late.parameters, [-1.0, 0.0])


@pytest.mark.parametrize("void", [(), (np.nan, 1.0)], ids=["without a gradient", "not finite"])
def test_contribution_without_usable_gradient_has_no_weight(void: tuple[float, ...]) -> None:
    tested = shard()
    one, two = pair(tested)
    version = tested.counters.version
    applied = two.push(*void, withheld=not void)
    assert applied.pending
    assert applied.outcome.discard is (Discard.NOT_FINITE if void else Discard.LOSS)
    assert one.push(4.0, 8.0).counters.version == version + 1
    assert parameters(tested) == [-4.0, -8.0]


def test_update_without_any_gradient_releases_the_workers() -> None:
    tested = shard(optimizer=RMSProp())
    one, two = pair(tested)
    one.push(1.0, 1.0)
    two.push(1.0, 1.0)
    one.catch_up()
    before, version = parameters(tested), tested.counters.version
    one.push()
    assert tested.counters.version == version
    two.push()
    assert tested.counters.version == version + 1
    assert parameters(tested) == before


def test_statistics_and_steps_count_at_once() -> None:
    tested = Shard(
        np.zeros(1, np.float32), Descent(), Schedule(1.0), statistics={"a": 1}, synchronization=Synchronization(NEVER)
    )
    one, two = Worker(tested, "one"), Worker(tested, "two")
    one.push(0.0)
    two.catch_up()
    applied = two.push(1.0, env_steps=5, statistics={"a": Moments.of(np.ones((2, 1)))}, client="c")
    assert applied.pending and applied.counters.env_steps == 6
    assert applied.statistics["a"].count == 2


def test_learning_rate_is_that_of_the_earliest_step() -> None:
    tested = shard(1, schedule=Schedule(1.0, 100))
    one, two = Worker(tested, "one"), Worker(tested, "two")
    one.push(0.0)
    two.catch_up()
    two.push(2.0, global_step=50)
    one.push(2.0, global_step=75)  # it already knows of steps that belong to the next update
    assert parameters(tested) == [-1.0]


def test_removed_worker_is_not_awaited_but_its_gradient_counts() -> None:
    tested = shard()
    one, two = pair(tested)
    two.push(8.0, 0.0)
    tested.stop_waiting_for("two")
    one.push(0.0, 0.0)
    assert parameters(tested) == [-6.0, 0.0]
    assert not one.push(1.0, 0.0).pending
    two.push(1.0, 0.0)  # stale
    assert one.push(1.0, 0.0).pending


def result_of_waiting(tested: Shard, version: int, wake: Callable[[], object]) -> list[bool]:
    """Let worker one wait for a newer version, call `wake`, and return the results of the wait."""
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(tested.await_version("one", version, 60.0)))
    waiting.start()
    wait_until(lambda: len(tested._changed._waiters) == 1, "the worker waits")  # type: ignore[attr-defined]
    wake()
    waiting.join(30)
    return found


def test_removal_of_the_last_missing_worker_wakes_the_others() -> None:
    tested = shard()
    one, _ = pair(tested)
    one.push(4.0, 0.0)
    assert result_of_waiting(tested, one.version, lambda: tested.stop_waiting_for("two")) == [True]
    version = tested.counters.version
    tested.complete_update()
    assert (tested.counters.version, parameters(tested)) == (version + 1, [-4.0, 0.0])
    tested.complete_update()
    assert tested.counters.version == version + 1


def test_waiting_worker_is_woken_by_the_update() -> None:
    tested = shard()
    one, two = pair(tested)
    one.push(4.0, 0.0)
    assert result_of_waiting(tested, one.version, lambda: two.push(0.0, 0.0)) == [False]


def test_wait_ends_without_an_update_after_its_time() -> None:
    tested = shard()
    one, _ = pair(tested)
    one.push(4.0, 0.0)
    assert not tested.await_version("one", one.version, 0.0)
    assert not tested.await_version("one", one.version, 0.01)
    assert not tested.await_version("one", one.version - 1, 60.0)  # there is a newer version already


def test_worker_that_waits_elsewhere_is_not_awaited() -> None:
    tested = shard()
    one, two = pair(tested)
    assert not tested.await_version("two", tested.counters.version, 0.0)
    assert not one.push(4.0, 0.0).pending
    tested.resume("two")
    assert one.push(4.0, 0.0).pending
    assert not tested.await_version("one", one.version, 0.0)  # a contributor is not suspended
    two.catch_up()
    two.push(0.0, 0.0)
    one.catch_up()
    assert parameters(tested) == [-5.0, 0.0]
    assert not tested.await_version("two", tested.counters.version, 0.0)
    two.catch_up()
    assert two.push(0.0, 0.0).pending  # a push resumes, too, and `one` is awaited
    one.push(0.0, 0.0)
    two.catch_up()
    assert one.push(0.0, 0.0).pending
    assert tested.synchronous_counts is not None and tested.synchronous_counts.left_out == 0


def test_asynchronous_shard_does_not_wait() -> None:
    assert not Shard(np.zeros(1, np.float32), Descent(), Schedule(1.0)).await_version("w", 0, 60.0)


def test_update_does_not_wait_beyond_its_patience() -> None:
    tested = shard(patience=0.05)
    one, slow = pair(tested)
    one.push(4.0, 0.0)
    version = tested.counters.version
    assert tested.await_version("one", one.version, 60.0)
    tested.complete_update()
    assert (tested.counters.version, parameters(tested)) == (version + 1, [-4.0, 0.0])
    one.catch_up()
    assert not one.push(1.0, 0.0).pending  # the slow worker is not awaited again
    assert slow.push(9.0, 9.0).outcome.discard is Discard.STALE
    assert one.push(1.0, 0.0).pending


class TestPatience:
    """Updates with a clock that the tests set."""

    now = 0.0

    def updates(self, patience: float = 10.0) -> SynchronousUpdates:
        return SynchronousUpdates(Synchronization(patience), lambda: self.now)

    def test_patience_counts_from_the_first_contribution(self) -> None:
        updates = self.updates()
        updates.join("slow", 2)
        self.now = 100.0
        assert not updates.is_complete and updates.seconds_left == np.inf
        updates.add("a", 1, np.ones(1, np.float32), 0)
        self.now = 105.0
        updates.add("b", 1, np.ones(1, np.float32), 0)
        assert not updates.is_complete
        assert updates.seconds_left == 5.0
        self.now = 110.0
        assert updates.is_complete

    def test_left_out_workers_are_counted_and_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        updates = self.updates()
        for worker in ("0123456789", "other"):
            updates.join(worker, 4)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                updates.add("a", 1, np.ones(1, np.float32), 0)
                self.now += 10.0
                updates.finish()
        assert (updates.counts.left_out, updates.counts.updates, updates.counts.contributions) == (2, 3, 3)
        (line,) = caplog.messages
        assert "without worker" in line and "(4 environments)" in line and "10 s" in line
        assert "0123456789" not in line


def test_restored_shard_has_no_pending_update() -> None:
    tested = shard()
    one, two = pair(tested)
    before = parameters(tested)
    one.push(4.0, 0.0)
    saved = tested.snapshot()
    assert [float(value) for value in saved.parameters] == before
    tested.restore(saved)
    repeated = tested.repeated_result("one", one.pushes)
    assert repeated is not None and not repeated.pending  # the ledger still has the push
    two.catch_up()
    assert not two.push(1.0, 1.0).pending  # workers that have not pushed since the restore are not awaited
    assert parameters(tested) == [-1.0, -1.0]


def test_memory_is_not_shared_for_updates_without_locks() -> None:
    tested = Shard(np.zeros(1, np.float32), RMSProp(), Schedule(1.0), synchronization=Synchronization(NEVER))
    with pytest.raises(CannotShare, match=r"algorithm\.sync"):
        tested.share(own_memory)
