from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base.config import Schedule
from relaax.optim.optimizers import Adam, RMSProp
from relaax.server.parameter_server.shard.shard import DelayCompensation, Push, Shard
from relaax.server.parameter_server.shard.state import Discard
from support.parameter_servers import Descent

EVERY = [None, DelayCompensation(0.5, 3)]


def shard(compensation: DelayCompensation | None, size: int = 2, **options: Any) -> Shard:
    initial, optimizer = np.zeros(size, np.float32), options.pop("optimizer", Descent())
    return Shard(initial, optimizer, options.pop("schedule", Schedule(1.0)), compensation=compensation, **options)


def push(push_id: int, *gradient: float, base: int = 0, step: int = 0) -> Push:
    return Push("w", push_id, base, np.array(gradient, np.float32), 5, 20, step)


def parameters(tested: Shard) -> list[float]:
    return tested.pull()[1].tolist()


def random_pushes(count: int, size: int = 30, staleness: int = 2) -> list[Push]:
    """Return gradients whose base versions are at most `staleness` updates old."""
    random = np.random.default_rng(7)
    return [
        Push("w", i + 1, max(0, i - int(random.integers(staleness + 1))), vector, 1, 1, i)
        for i, vector in enumerate(random.standard_normal((count, size)).astype(np.float32))
    ]


def test_stale_gradient_is_corrected_by_the_parameter_change() -> None:
    # From [0, 0] two updates lead to [-3, 1]. A gradient [2, -4] of version 0, λ = 0.5:
    # 2 + 0.5·4·(-3) = -4 and -4 + 0.5·16·1 = 4; of version 1, [-1, 0]: 2 + 0.5·4·(-2) = -2 and again 4.
    for base, expected in ((0, [-3 + 4, 1 - 4]), (1, [-3 + 2, 1 - 4]), (2, [-3 - 2, 1 + 4])):
        tested = shard(DelayCompensation(0.5, 3))
        tested.push(push(1, 1, 0))
        tested.push(push(2, 2, -1, base=1))
        applied = tested.push(push(3, 2, -4, base=base))
        assert applied.outcome.staleness == 2 - base
        assert parameters(tested) == expected


def test_gradient_older_than_the_ring_is_discarded_as_stale() -> None:
    tested = shard(DelayCompensation(0.5, 2))
    for i in range(3):
        assert tested.push(push(i + 1, 1, 1, base=i)).outcome.discard is Discard.NONE
    assert tested.push(push(4, 1, 1, base=0)).outcome.discard is Discard.STALE
    assert tested.push(push(5, 1, 1, base=1)).outcome.discard is Discard.NONE
    assert tested.counters.discarded_stale == 1


def test_non_finite_correction_is_discarded() -> None:
    tested = shard(DelayCompensation(1e30, 2))
    tested.push(push(1, 1, 1))
    applied = tested.push(push(2, 1e6, 1, base=0))
    assert applied.outcome.discard is Discard.NOT_FINITE
    assert parameters(tested) == [-1, -1]
    assert tested.push(push(3, 1, 1, base=1)).counters.version == 2


@pytest.mark.parametrize("same", [DelayCompensation(0.0, 16)])
@pytest.mark.parametrize("optimizer", [RMSProp(), RMSProp(centered=True), Adam()])
def test_zero_compensation_equals_first_in_first_out(same: DelayCompensation, optimizer: Any) -> None:
    shards = [shard(combine, 30, optimizer=optimizer, max_staleness=16) for combine in (None, same)]
    for sent in random_pushes(12):
        one, two = (tested.push(sent) for tested in shards)
        assert one.parameters.tobytes() == two.parameters.tobytes()
        assert (one.outcome, one.counters) == (two.outcome, two.counters)


@pytest.mark.parametrize("combine", EVERY)
@pytest.mark.parametrize("after", [4, 6])
def test_restored_shard_continues_with_the_same_bytes(combine: DelayCompensation | None, after: int) -> None:
    original = shard(combine, 30, optimizer=RMSProp())
    pushes = random_pushes(12)
    for sent in pushes[:after]:
        original.push(sent)
    snapshot = original.snapshot()
    version = snapshot.counters.version
    # After a restore workers pull again, so their base version is at least the restored version.
    following = [
        Push("w", sent.push_id, max(version, sent.base_version), sent.gradient, 1, 1, 0) for sent in pushes[after:]
    ]
    expected = [original.push(sent) for sent in following]
    copy = shard(combine, 30, optimizer=RMSProp())
    copy.push(push(1, *[1.0] * 30))  # the restore replaces this state
    copy.restore(snapshot)
    assert copy.counters == snapshot.counters
    for sent, one in zip(following, expected, strict=True):
        two = copy.push(sent)
        assert one.parameters.tobytes() == two.parameters.tobytes()
        assert (one.outcome, one.counters) == (two.outcome, two.counters)


def test_restored_ring_holds_the_current_version_only() -> None:
    original = shard(DelayCompensation(0.5, 3))
    for i in range(3):
        original.push(push(i + 1, 1, 1, base=i))
    copy = shard(DelayCompensation(0.5, 3))
    copy.restore(original.snapshot())
    assert copy.push(push(4, 1, 1, base=2)).outcome.discard is Discard.STALE
    assert copy.push(push(5, 1, 1, base=3)).outcome.discard is Discard.NONE


@pytest.mark.parametrize("now", EVERY)
@pytest.mark.parametrize("before", EVERY)
def test_compensation_may_change_at_a_restart(before: DelayCompensation | None, now: DelayCompensation | None) -> None:
    original, copy = shard(before), shard(now)
    original.push(push(1, 1, 2))
    copy.restore(original.snapshot())
    assert parameters(copy) == parameters(original)
