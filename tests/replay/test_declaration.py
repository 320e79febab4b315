"""The share of each shard in the capacity and the limits of a table."""

from __future__ import annotations

import pytest

from relaax.replay.spec import Field, TableDeclaration, TableSpec
from relaax.replay.table.limiter import RateLimiter


def declared(capacity: int = 100, **limits: object) -> TableDeclaration:
    return TableDeclaration(TableSpec("it", {"number": Field("int64")}, capacity), **limits)  # type: ignore[arg-type]


def begins_after(limiter: RateLimiter) -> int:
    """Return the number of items that are inserted before the first sample."""
    while not limiter.has_min_size:
        assert not limiter.await_sample(1, 0.0)
        assert limiter.await_insert(1, 0.0)
    return limiter.inserts


@pytest.mark.parametrize("ratio", [None, 2.0])
@pytest.mark.parametrize(("shards", "each"), [(1, 50), (2, 25), (3, 17), (4, 13)])
def test_shards_share_min_size(ratio: float | None, shards: int, each: int) -> None:
    declaration = declared(min_size=50, samples_per_insert=ratio)
    assert [begins_after(declaration.limiter(shards)) for _ in range(shards)] == [each] * shards
    assert shards * each >= 50 > shards * (each - 1)


@pytest.mark.parametrize(("shards", "each"), [(1, 100), (2, 50), (3, 34)])
def test_shards_share_the_capacity(shards: int, each: int) -> None:
    assert declared().spec_of_shard(shards).capacity == each
    frames = TableSpec("it", {"stack": Field("uint8", (2, 2, 2), frames=2)}, 100, frame=(2, 2, 1), frame_slots=300)
    spec = TableDeclaration(frames).spec_of_shard(shards)
    assert (spec.capacity, spec.frame_slots) == (each, 3 * each if shards < 3 else 100)


def ahead(limiter: RateLimiter) -> int:
    """Return the number of items beyond `min_size` that can be inserted without a sample."""
    begins_after(limiter)
    more = 0
    while limiter.await_insert(1, 0.0):
        more += 1
    return more


def test_each_shard_has_the_given_error_buffer() -> None:
    """A writer inserts into one shard, and a learner may draw a whole batch from one shard."""
    given = declared(min_size=20, samples_per_insert=4.0, error_buffer=40.0)
    assert [ahead(given.limiter(shards)) for shards in (1, 2, 20)] == [10, 10, 10]


def test_default_error_buffer_lets_large_requests_pass() -> None:
    large = declared(10**6, min_size=50_000, samples_per_insert=4.0)
    assert ahead(large.limiter()) == 5_000
    assert ahead(large.limiter(5)) == 1_000
    assert ahead(large.limiter(50)) == 1_000, "a request is as large with many shards"
    assert ahead(declared(min_size=1, samples_per_insert=0.5).limiter()) == 2_000


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"min_size": 101}, "min_size 101 of table 'it' is larger than its capacity 100"),
        ({"min_size": 0}, "min_size must be at least 1, not 0"),
        ({"samples_per_insert": 4.0, "error_buffer": 3.0}, "error_buffer must be a finite number of at least"),
    ],
)
def test_invalid_limits_are_refused(limits: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        declared(**limits)
