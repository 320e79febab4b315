from __future__ import annotations

import dataclasses
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base.config import Schedule
from relaax.optim.optimizers import AdaGrad, Adam, Add, Momentum, RMSProp
from relaax.parameters.moments import Moments
from relaax.server.parameter_server.shard.shard import Push, PushRefused, Shard
from relaax.server.parameter_server.shard.state import Counters, Discard, PushOutOfOrder, SnapshotMemory
from support.parameter_servers import Descent


def shard(size: int = 2, **options: Any) -> Shard:
    return Shard(np.zeros(size, np.float32), Descent(), options.pop("schedule", Schedule(1.0)), **options)


def push(push_id: int, *gradient: float, worker: str = "w", **changes: Any) -> Push:
    vector = np.array(gradient, np.float32) if gradient else None
    values: dict[str, Any] = {"base_version": 0, "env_steps": 5, "frames": 20, "global_step": 0, **changes}
    return Push(worker, push_id, gradient=vector, **values)


def test_push_is_applied_counted_and_answered() -> None:
    applied = shard().push(push(1, 1, 2))
    assert applied.outcome.discard is Discard.NONE
    assert applied.counters == Counters(version=1, env_steps=5, frames=20)
    np.testing.assert_array_equal(applied.parameters, [-1, -2])


def test_repeated_push_is_answered_but_not_applied() -> None:
    tested = shard()
    first = tested.push(push(1, 1, 2))
    again = tested.push(push(1, 1, 2))
    assert (first.repeated, again.repeated) == (False, True)
    assert dataclasses.replace(again, repeated=False, parameters=first.parameters) == first
    np.testing.assert_array_equal(again.parameters, [-1, -2])
    # After a push of another worker, the outcome is still the first one, and the parameters are current.
    tested.push(push(1, 1, 1, worker="other"))
    later = tested.push(push(1, 1, 2))
    assert later.outcome == first.outcome
    assert later.counters.version == 2
    np.testing.assert_array_equal(later.parameters, [-2, -3])


def test_push_after_a_gap_changes_nothing() -> None:
    tested = shard()
    with pytest.raises(PushOutOfOrder):
        tested.push(push(2, 1, 2))
    assert tested.counters == Counters()


def test_learning_rate_follows_the_step_of_the_worker() -> None:
    tested = shard(schedule=Schedule(0.5, 100))
    np.testing.assert_array_equal(tested.push(push(1, 1, 1, global_step=50)).parameters, [-0.25, -0.25])
    np.testing.assert_array_equal(tested.push(push(2, 1, 1, global_step=100)).parameters, [-0.25, -0.25])
    assert tested.counters.version == 2


def test_steps_of_a_stale_gradient_are_counted() -> None:
    tested = shard(max_staleness=1)
    outcomes = [tested.push(push(i, 1, 1, base_version=0)).outcome for i in (1, 2, 3)]
    assert [outcome.staleness for outcome in outcomes] == [0, 1, 2]
    assert [outcome.discard for outcome in outcomes] == [Discard.NONE, Discard.NONE, Discard.STALE]
    assert tested.counters == Counters(version=2, env_steps=15, frames=60, discarded_stale=1)
    np.testing.assert_array_equal(tested.pull()[1], [-2, -2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_gradient_with_a_non_finite_result_is_discarded(bad: float) -> None:
    tested = shard()
    applied = tested.push(push(1, 1, bad))
    assert applied.outcome.discard is Discard.NOT_FINITE
    assert applied.counters == Counters(env_steps=5, frames=20, discarded_not_finite=1)
    np.testing.assert_array_equal(applied.parameters, [0, 0])


def test_withheld_gradient_and_its_steps_are_counted() -> None:
    tested = shard()
    for _ in range(2):
        applied = tested.push(push(1, withheld=True))
        assert applied.outcome.discard is Discard.LOSS
        assert applied.counters == Counters(env_steps=5, frames=20, discarded_loss=1)
    assert applied.counters.discarded == 1
    with pytest.raises(PushRefused, match="withheld=true must not have a gradient"):
        tested.push(push(2, 1, 2, withheld=True))


def test_counters_of_an_older_version_are_restored() -> None:
    tested = shard()
    tested.push(push(1, 1, 2))
    old = {"version": 1, "env_steps": 5, "frames": 20, "discarded_stale": 0, "discarded_not_finite": 0}
    tested.restore(dataclasses.replace(tested.snapshot(), counters=Counters(**old)))
    assert tested.counters == Counters(version=1, env_steps=5, frames=20)


def test_push_without_a_gradient_advances_only_counters() -> None:
    applied = shard().push(push(1))
    assert applied.counters == Counters(env_steps=5, frames=20)
    assert applied.outcome.staleness == 0


def test_gradient_of_another_length_is_refused() -> None:
    with pytest.raises(PushRefused, match="must have 2 elements, not 3"):
        shard().push(push(1, 1, 2, 3))


def test_future_base_version_is_refused() -> None:
    with pytest.raises(PushRefused, match="base version 1 is newer than the current version"):
        shard().push(push(1, 1, 2, base_version=1))


@pytest.mark.parametrize("optimizer", [RMSProp(), RMSProp(centered=True), Momentum(), AdaGrad(), Adam(), Add()])
def test_restored_shard_continues_with_the_same_bytes(optimizer: Any) -> None:
    random = np.random.default_rng(0)
    original = Shard(np.ones(30, np.float32), optimizer, Schedule(0.1, 1000))
    for i in range(1, 4):
        original.push(push(i, *random.standard_normal(30), base_version=i - 1, global_step=5 * i))
    copy = Shard(np.zeros(30, np.float32), optimizer, Schedule(0.1, 1000))
    copy.restore(original.snapshot())
    following = push(4, *random.standard_normal(30), base_version=3, global_step=20)
    one, two = original.push(following), copy.push(following)
    assert one.parameters.tobytes() == two.parameters.tobytes()
    assert (one.outcome, one.counters) == (two.outcome, two.counters)
    assert copy.push(following).repeated


def test_snapshot_does_not_change_with_later_pushes() -> None:
    tested = shard()
    tested.push(push(1, 1, 2))
    snapshot = tested.snapshot()
    tested.push(push(2, 1, 2))
    np.testing.assert_array_equal(snapshot.parameters, [-1, -2])
    assert snapshot.counters.version == 1
    assert snapshot.ledger == {"w": [1, 0, 0]}


def test_snapshot_uses_prepared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = shard()
    tested.prepare()
    tested.push(push(1, 1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(SnapshotMemory, "touch", lambda copies: pytest.fail("memory is allocated"))
        first = tested.snapshot()
    tested.push(push(2, 1, 2))
    second = tested.snapshot()
    np.testing.assert_array_equal(first.parameters, [-1, -2])
    np.testing.assert_array_equal(second.parameters, [-2, -4])
    tested.prepare()
    tested.free_prepared()
    monkeypatch.setattr(SnapshotMemory, "touch", lambda copies: pytest.fail("memory is allocated"))
    with pytest.raises(pytest.fail.Exception, match="memory is allocated"):
        tested.snapshot()


def test_mark_changes_with_the_state_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    tested = shard()
    before = tested.snapshot()
    monkeypatch.setattr(SnapshotMemory, "__init__", lambda self, like: pytest.fail("the state is copied"))
    assert tested.mark == (before.counters, before.statistics)
    tested.push(push(1, 1, 2))
    assert tested.mark != (before.counters, before.statistics)


def test_repeated_result_exists_only_for_the_last_push() -> None:
    tested = shard()
    tested.push(push(1, 1, 2))
    repeated = tested.repeated_result("w", 1)
    assert repeated is not None
    assert repeated.repeated
    assert tested.repeated_result("w", 2) is None
    tested.remove_worker("w")
    assert tested.repeated_result("w", 1) is None


def samples_of(*samples: float) -> dict[str, Moments]:
    return {"a": Moments.of([[sample] for sample in samples])}


def merged(tested: Shard) -> tuple[float, float, float]:
    moments = tested.pull()[2]["a"]
    return moments.count, moments.mean[0], moments.m2[0]


def test_statistics_of_a_discarded_gradient_are_merged_once() -> None:
    tested = shard(max_staleness=0, statistics={"a": 1})
    assert merged(tested) == (0, 0, 0)
    for _ in range(2):
        applied = tested.push(push(1, 1, 1, statistics=samples_of(1, 3)))
        assert applied.statistics is tested.pull()[2]
        assert merged(tested) == (2, 2, 2)
    assert tested.push(push(2, 1, 1, statistics=samples_of(8))).outcome.discard is Discard.STALE
    assert merged(tested) == (3, 4, 26)
    assert tested.push(push(3, 1, np.nan, statistics=samples_of(4))).outcome.discard is Discard.NOT_FINITE
    tested.push(push(4, statistics=samples_of(4)))
    assert merged(tested) == (5, 4, 26)
    again = tested.repeated_result("w", 4)
    assert again is not None
    assert again.statistics["a"].count == 5


@pytest.mark.parametrize(
    ("statistics", "sentence"),
    [
        ({"b": Moments.zeros(1)}, "unknown statistic 'b'"),
        ({"a": Moments.zeros(2)}, "statistic 'a' has samples of 1 numbers, not 2"),
    ],
)
def test_invalid_statistics_change_nothing(statistics: dict[str, Moments], sentence: str) -> None:
    tested = shard(statistics={"a": 1})
    tested.push(push(1, statistics=samples_of(7)))
    with pytest.raises(PushRefused, match=sentence):
        tested.push(push(2, 1, 1, statistics=statistics))
    assert tested.counters == Counters(env_steps=5, frames=20)
    assert merged(tested) == (1, 7, 0)
    np.testing.assert_array_equal(tested.push(push(2, 1, 1)).parameters, [-1, -1])


@pytest.mark.parametrize("order", [1, -1])
def test_unmergeable_sample_is_dropped_without_an_error(order: int, caplog: pytest.LogCaptureFixture) -> None:
    tested = shard(statistics={"a": 1})
    kept, edge = samples_of(1, 3), {"a": Moments(2.0, np.array([1e300]), np.array([1.7e308]))}
    for number, samples in enumerate((kept, edge)[::order], 1):
        assert tested.push(push(number, statistics=samples)).outcome.discard is Discard.NONE
    assert merged(tested) == (2, 2, 2)
    for number in range(3, 9):
        tested.push(push(number, statistics=edge))
    tested.push(push(9, statistics=samples_of(8)))
    assert merged(tested) == (3, 4, 26)
    assert tested.dropped_samples == 7
    assert caplog.text.count("dropped a sample of the statistic a") == 1


def test_statistic_near_overflow_is_restored_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tested = shard(statistics={"a": 1, "b": 1})
    snapshot = tested.snapshot()
    poisoned = replace(
        snapshot, statistics={"a": Moments(6.0, np.array([0.0]), np.array([1.7e308])), "b": samples_of(5)["a"]}
    )
    tested.restore(poisoned)
    assert merged(tested) == (0, 0, 0)
    assert tested.pull()[2]["b"].count == 1
    assert "the checkpoint's statistic a is unusable and starts empty" in caplog.text
    tested.push(push(1, statistics=samples_of(1, 3)))
    assert merged(tested) == (2, 2, 2)


def test_statistics_of_a_snapshot_are_restored_exactly() -> None:
    tested = shard(statistics={"a": 1})
    tested.push(push(1, statistics=samples_of(0.1, 0.7)))
    snapshot = tested.snapshot()
    tested.push(push(2, statistics=samples_of(5)))
    assert snapshot.statistics["a"].count == 2
    copy = shard(statistics={"a": 1})
    copy.restore(snapshot)
    copy.push(push(2, statistics=samples_of(5)))
    assert merged(copy) == merged(tested)
    with pytest.raises(ValueError, match=r"the statistics are \{'a': 2\}, but \{'a': 1\} in the checkpoint"):
        shard(statistics={"a": 2}).restore(snapshot)


def test_concurrent_pushes_and_pulls_are_consistent() -> None:
    # Every push adds the same value to all elements: a vector with different elements was read during a write.
    size, threads, pushes = 20_000, 8, 40
    tested = Shard(np.zeros(size, np.float32), Descent(), Schedule(1.0))
    ones = np.ones(size, np.float32)
    torn: list[str] = []
    stop = threading.Event()

    def pusher(number: int) -> None:
        for i in range(1, pushes + 1):
            sent = Push(str(number), i, 0, -ones * (number + 1), 1, 1, 0)
            for _ in range(1 + i % 2):  # every second push is repeated
                tested.push(sent)

    def reader() -> None:
        while not stop.is_set():
            counters, parameters, _ = tested.pull()
            first, kept = parameters[0], parameters.copy()
            if not (parameters == first).all() or not (kept == parameters).all():
                torn.append(f"version {counters.version}")

    readers = [threading.Thread(target=reader) for _ in range(2)]
    pushers = [threading.Thread(target=pusher, args=(n,)) for n in range(threads)]
    for thread in readers + pushers:
        thread.start()
    for thread in pushers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert torn == []
    assert tested.counters.version == tested.counters.env_steps == threads * pushes
    np.testing.assert_array_equal(tested.pull()[1], np.full(size, pushes * sum(range(1, threads + 1))))
