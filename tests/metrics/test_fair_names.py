"""Names of many users, and whose place goes to whom."""

from __future__ import annotations

from relaax.metrics.aggregator import Aggregator
from relaax.metrics.names import FairNames


def names_of(user: str, count: int) -> list[str]:
    return [f"{user}/{index}" for index in range(count)]


def test_while_there_are_places_everybody_gets_them() -> None:
    names = FairNames(4)
    assert all(names.admits(name, "a") for name in names_of("a", 4))
    assert not names.admits("one too many", "a")
    assert names.admits("a/0", "b"), "a name that is there needs no place"


def test_who_comes_late_gets_his_share_of_who_has_most_and_no_more() -> None:
    names = FairNames(6)
    assert all(names.admits(name, "a") for name in names_of("a", 6))
    assert [names.admits(name, "b") for name in names_of("b", 6)] == [True, True, True, False, False, False]
    assert [names.admits(name, "a") for name in names_of("a", 6)] == [True, True, True, False, False, False]
    assert [names.admits(name, "c") for name in names_of("c", 6)] == [True, True, False, False, False, False]
    assert all(names.admits(name, "b") for name in names_of("b", 2))


def test_a_name_that_others_use_too_goes_last() -> None:
    names = FairNames(3)
    for name in ("own", "other", "shared"):
        assert names.admits(name, "a")
    assert names.admits("shared", "b")
    assert not names.admits("mine", "b"), "it has its share: one of three"
    assert names.admits("mine", "c")
    assert names.admits("shared", "b")
    assert not names.admits("other", "a")


def test_names_of_those_who_have_gone_go_first_and_not_before_they_must() -> None:
    names = FairNames(3)
    for name in names_of("a", 3):
        assert names.admits(name, "a")
    names.forget("a")
    names.forget("a")
    assert names.admits("a/0", "b")
    assert all(names.admits(name, "b") for name in ("b/0", "b/1"))
    assert not names.admits("a/1", "b")
    assert names.admits("a/0", "b")


def test_one_client_takes_no_place_of_anothers_metrics() -> None:
    aggregator = Aggregator(max_names=1024)
    for index in range(2000):
        aggregator.scalars([(f"client/noise-{index}", 1.0, 1)], "greedy")
    aggregator.drain()
    aggregator.scalars([("client/score", 3.0, 1), ("loss/value", 0.5, 1)], "honest")
    assert aggregator.drain() == {"client/score": 3.0, "loss/value": 0.5}
    aggregator.scalars([("client/noise-0", 1.0, 1)], "greedy")
    assert aggregator.drain() == {"client/noise-0": 1.0}
