from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base.schedule import Schedule
from relaax.optim.optimizers import Adam, RMSProp
from relaax.server.parameter_server.combining import Average, CombinerSpec, DelayCompensated, Fifo
from relaax.server.parameter_server.counters import Counters
from relaax.server.parameter_server.ledger import Discard
from relaax.server.parameter_server.shard import Push, Shard
from support.parameter_servers import Descent

EVERY = [Fifo(), Average(4), DelayCompensated(0.5, 3)]


def shard(combine: CombinerSpec, size: int = 2, **options: Any) -> Shard:
    initial, optimizer = np.zeros(size, np.float32), options.pop("optimizer", Descent())
    return Shard(initial, optimizer, options.pop("schedule", Schedule(1.0)), combine=combine, **options)


def push(push_id: int, *gradient: float, base: int = 0, step: int = 0) -> Push:
    return Push("w", push_id, base, np.array(gradient, np.float32), 5, 20, step)


def parameters(tested: Shard) -> list[float]:
    return tested.pull()[1].tolist()


def random_pushes(count: int, size: int = 30, window: int = 1, staleness: int = 2) -> list[Push]:
    """Gradients whose bases are up to so many versions old, where every `window` of them make a version."""
    random = np.random.default_rng(7)
    return [
        Push("w", i + 1, max(0, i // window - int(random.integers(staleness + 1))), vector, 1, 1, i)
        for i, vector in enumerate(random.standard_normal((count, size)).astype(np.float32))
    ]


def test_a_window_of_gradients_is_one_update_along_their_mean() -> None:
    tested = shard(Average(2))
    waiting = tested.push(push(1, 1, 2))
    assert waiting.outcome.discard is Discard.NONE
    assert waiting.counters == Counters(version=0, env_steps=5, frames=20, pending=1)
    assert parameters(tested) == [0, 0]
    made = tested.push(push(2, 3, -6))
    assert made.counters == Counters(version=1, env_steps=10, frames=40)
    assert parameters(tested) == [-2, 2]
    # The next window begins with nothing.
    tested.push(push(3, 1, 1, base=1))
    tested.push(push(4, 1, 1, base=1))
    assert parameters(tested) == [-3, 1]


def test_the_rate_of_a_window_is_that_of_the_gradient_that_completes_it() -> None:
    tested = shard(Average(2), schedule=Schedule(1.0, 100))
    tested.push(push(1, 2, 2, step=0))
    tested.push(push(2, 2, 2, step=50))
    assert parameters(tested) == [-1, -1]


def test_what_is_discarded_does_not_enter_the_mean_and_waiting_makes_nothing_stale() -> None:
    tested = shard(Average(2), max_staleness=0)
    assert tested.push(push(1, np.nan, 1)).outcome.discard is Discard.NOT_FINITE
    assert [tested.push(push(i, 2, 2)).outcome.staleness for i in (2, 3)] == [0, 0]
    assert tested.push(push(4, 8, 8, base=0)).outcome.discard is Discard.STALE
    assert tested.counters == Counters(1, 20, 80, discarded_stale=1, discarded_not_finite=1)
    assert parameters(tested) == [-2, -2]


def test_a_repeated_push_does_not_enter_the_mean_twice() -> None:
    tested = shard(Average(2))
    for _ in range(2):
        assert tested.push(push(1, 1, 1)).counters.pending == 1
    assert parameters(tested) == [0, 0]


def test_a_delayed_gradient_is_corrected_by_what_changed_since() -> None:
    # From [0, 0] two updates lead to [-3, 1]. A gradient [2, -4] of version 0, λ = 0.5:
    # 2 + 0.5·4·(-3) = -4 and -4 + 0.5·16·1 = 4; of version 1, [-1, 0]: 2 + 0.5·4·(-2) = -2 and again 4.
    for base, expected in ((0, [-3 + 4, 1 - 4]), (1, [-3 + 2, 1 - 4]), (2, [-3 - 2, 1 + 4])):
        tested = shard(DelayCompensated(0.5, 3))
        tested.push(push(1, 1, 0))
        tested.push(push(2, 2, -1, base=1))
        applied = tested.push(push(3, 2, -4, base=base))
        assert applied.outcome.staleness == 2 - base
        assert parameters(tested) == expected


def test_what_is_older_than_the_ring_is_too_stale() -> None:
    tested = shard(DelayCompensated(0.5, 2))
    for i in range(3):
        assert tested.push(push(i + 1, 1, 1, base=i)).outcome.discard is Discard.NONE
    assert tested.push(push(4, 1, 1, base=0)).outcome.discard is Discard.STALE
    assert tested.push(push(5, 1, 1, base=1)).outcome.discard is Discard.NONE
    assert tested.counters.discarded_stale == 1


def test_a_correction_that_would_ruin_the_model_is_discarded() -> None:
    tested = shard(DelayCompensated(1e30, 2))
    tested.push(push(1, 1, 1))
    applied = tested.push(push(2, 1e6, 1, base=0))
    assert applied.outcome.discard is Discard.NOT_FINITE
    assert parameters(tested) == [-1, -1]
    assert tested.push(push(3, 1, 1, base=1)).counters.version == 2


@pytest.mark.parametrize("same", [Average(1), DelayCompensated(0.0, 16)])
@pytest.mark.parametrize("optimizer", [RMSProp(), Adam()])
def test_a_window_of_one_and_no_compensation_are_first_in_first_out(same: CombinerSpec, optimizer: Any) -> None:
    shards = [shard(combine, 30, optimizer=optimizer, max_staleness=16) for combine in (Fifo(), same)]
    for sent in random_pushes(12):
        one, two = (tested.push(sent) for tested in shards)
        assert one.parameters.tobytes() == two.parameters.tobytes()
        assert (one.outcome, one.counters) == (two.outcome, two.counters)


@pytest.mark.parametrize("combine", EVERY)
@pytest.mark.parametrize("after", [4, 6])
def test_a_restored_shard_continues_to_the_byte_in_the_middle_of_a_window_too(
    combine: CombinerSpec, after: int
) -> None:
    original = shard(combine, 30, optimizer=RMSProp())
    window = combine.window if isinstance(combine, Average) else 1
    pushes = random_pushes(12, window=window)
    for sent in pushes[:after]:
        original.push(sent)
    snapshot = original.snapshot()
    version = snapshot.counters.version
    # Workers pull afresh after a restore: their gradients have the restored version as their base, or a later one.
    following = [
        Push("w", sent.push_id, max(version, sent.base_version), sent.gradient, 1, 1, 0) for sent in pushes[after:]
    ]
    expected = [original.push(sent) for sent in following]
    copy = shard(combine, 30, optimizer=RMSProp())
    copy.push(push(1, *[1.0] * 30))  # whatever was there is gone
    copy.restore(snapshot)
    assert copy.counters == snapshot.counters
    for sent, one in zip(following, expected, strict=True):
        two = copy.push(sent)
        assert one.parameters.tobytes() == two.parameters.tobytes()
        assert (one.outcome, one.counters) == (two.outcome, two.counters)


def test_a_restored_ring_holds_the_current_version_only() -> None:
    original = shard(DelayCompensated(0.5, 3))
    for i in range(3):
        original.push(push(i + 1, 1, 1, base=i))
    copy = shard(DelayCompensated(0.5, 3))
    copy.restore(original.snapshot())
    assert copy.push(push(4, 1, 1, base=2)).outcome.discard is Discard.STALE
    assert copy.push(push(5, 1, 1, base=3)).outcome.discard is Discard.NONE


def test_a_snapshot_of_a_pending_mean_never_changes_and_every_slot_can_be_cut() -> None:
    tested = shard(Average(3))
    tested.push(push(1, 1, 2))
    slots = tested.snapshot().slots
    tested.push(push(2, 1, 2))
    assert slots["pending_sum"].tolist() == [1, 2]
    assert slots["pending_count"].tolist() == [1]
    assert {slot.shape for slot in slots.values()} <= {(2,), (1,)}


@pytest.mark.parametrize("now", EVERY)
@pytest.mark.parametrize("before", EVERY)
def test_the_way_may_change_between_two_lives_and_what_was_pending_is_dropped(
    before: CombinerSpec, now: CombinerSpec
) -> None:
    original, copy = shard(before), shard(now)
    original.push(push(1, 1, 2))
    copy.restore(original.snapshot())
    assert parameters(copy) == parameters(original)
    both = isinstance(before, Average) and isinstance(now, Average)
    assert copy.counters.pending == (1 if both else 0)


def test_a_smaller_window_closes_with_the_next_gradient() -> None:
    original, copy = shard(Average(4)), shard(Average(2))
    for i in range(3):
        original.push(push(i + 1, 1, 2))
    copy.restore(original.snapshot())
    assert copy.push(push(4, 5, 6)).counters == Counters(version=1, env_steps=20, frames=80)
    assert parameters(copy) == [-2, -3]  # the mean of all four


def test_a_pending_mean_of_another_length_is_refused() -> None:
    snapshot = shard(Average(2)).snapshot()
    snapshot.slots["pending_sum"] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="a pending mean has 2 numbers, that of the checkpoint 3"):
        shard(Average(2)).restore(snapshot)
