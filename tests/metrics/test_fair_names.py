"""Fair sharing of a limited number of metric names between users."""

from __future__ import annotations

from relaax.metrics.aggregator import Aggregator
from relaax.metrics.names import FairNames


def names_of(user: str, count: int) -> list[str]:
    return [f"{user}/{index}" for index in range(count)]


def test_names_are_admitted_while_places_are_free() -> None:
    names = FairNames(4)
    assert all(names.admits(name, "a") for name in names_of("a", 4))
    assert not names.admits("a/4", "a")
    assert names.admits("a/0", "b"), "an existing name needs no place"


def test_late_user_gets_equal_share_from_largest_user() -> None:
    names = FairNames(6)
    assert all(names.admits(name, "a") for name in names_of("a", 6))
    assert [names.admits(name, "b") for name in names_of("b", 6)] == [True, True, True, False, False, False]
    assert [names.admits(name, "a") for name in names_of("a", 6)] == [True, True, True, False, False, False]
    assert [names.admits(name, "c") for name in names_of("c", 6)] == [True, True, False, False, False, False]
    assert all(names.admits(name, "b") for name in names_of("b", 2))


def test_name_shared_by_users_is_evicted_last() -> None:
    names = FairNames(3)
    for name in ("own", "other", "shared"):
        assert names.admits(name, "a")
    assert names.admits("shared", "b")
    assert not names.admits("mine", "b"), "b already has its share: one of three places"
    assert names.admits("mine", "c")
    assert names.admits("shared", "b")
    assert not names.admits("other", "a")


def test_names_of_removed_users_are_evicted_first() -> None:
    names = FairNames(3)
    for name in names_of("a", 3):
        assert names.admits(name, "a")
    names.forget("a")
    names.forget("a")
    assert names.admits("a/0", "b")
    assert all(names.admits(name, "b") for name in ("b/0", "b/1"))
    assert not names.admits("a/1", "b")
    assert names.admits("a/0", "b")


def test_client_with_many_names_evicts_no_other_metrics() -> None:
    aggregator = Aggregator(max_names=1024)
    for index in range(2000):
        aggregator.scalars([(f"client/noise-{index}", 1.0, 1)], "greedy")
    aggregator.drain()
    aggregator.scalars([("client/score", 3.0, 1), ("loss/value", 0.5, 1)], "honest")
    assert aggregator.drain() == {"client/score": 3.0, "loss/value": 0.5}
    aggregator.scalars([("client/noise-0", 1.0, 1)], "greedy")
    assert aggregator.drain() == {"client/noise-0": 1.0}
