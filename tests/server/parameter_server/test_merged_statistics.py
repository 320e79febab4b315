"""Merged statistics while the samples of one client are outliers."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from relaax.parameters.moments import Moments
from relaax.server.parameter_server.shard.merged_statistics import (
    CHECK_PUSHES,
    COMPARED_CLIENTS,
    PROVEN,
    MergedStatistics,
)
from support.parameter_servers import Models, gradient, parameter_client, registration, running

LARGEST = 3.4e38


def samples(rng: np.random.Generator, scale: float = 1.0) -> dict[str, Moments]:
    return {"a": Moments.of(scale * rng.normal([5.0, 0.0], [1.0, 0.1], (50, 2)))}


def outliers() -> dict[str, Moments]:
    return {"a": Moments.of(np.full((50, 2), LARGEST))}


def push_rounds(merged: MergedStatistics, honest: int, rounds: int) -> Moments:
    """In each round push outliers of one client, then samples of `honest` clients; return the merged honest samples."""
    rng = np.random.default_rng(3)
    truth = Moments.zeros(2)
    for _ in range(rounds):
        merged.add("outlier", outliers())
        for client in range(honest):
            one = samples(rng)
            truth = truth.merged(one["a"])
            merged.add(f"client {client}", one)
    return truth


def test_samples_of_one_outlier_are_excluded_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    merged = MergedStatistics({"a": 2})
    truth = push_rounds(merged, 3, 20)
    assert merged.merged["a"].count == truth.count
    np.testing.assert_allclose(merged.merged["a"].mean, truth.mean)
    np.testing.assert_allclose(merged.merged["a"].variance, truth.variance)
    assert merged.outlying_clients == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "merged statistic a: samples of outlier are excluded: more than 100 times as large as other clients'"


def test_similar_clients_merge_as_without_names_bit_for_bit() -> None:
    rng = np.random.default_rng(5)
    merged, plain = MergedStatistics({"a": 2}), Moments.zeros(2)
    for number in range(1000):
        one = samples(rng, scale=1.0 + number % 7)
        plain = plain.merged(one["a"])
        merged.add(f"client {number % 7}", one)
    assert (merged.merged["a"].mean == plain.mean).all() and (merged.merged["a"].m2 == plain.m2).all()
    assert merged.outlying_clients == 0


def test_scale_that_all_clients_reach_is_included_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    rng = np.random.default_rng(7)
    merged = MergedStatistics({"a": 2})
    for client in ("first", "second", "third"):
        merged.add(client, samples(rng))
    for _ in range(CHECK_PUSHES):
        merged.add("first", samples(rng, 1e4))
    assert (merged.outlying_clients, merged.merged["a"].count) == (1, 100)
    for _ in range(CHECK_PUSHES):
        for client in ("second", "third"):
            merged.add(client, samples(rng, 1e4))
    assert (merged.outlying_clients, merged.merged["a"].count) == (0, 50 * (3 + 3 * CHECK_PUSHES))
    assert "statistic a: samples of first are included again" in caplog.text


def test_spoilt_checkpoint_recovers_once_clients_agree() -> None:
    merged = MergedStatistics({"a": 2})
    merged.restore(outliers())
    truth = push_rounds(merged, 3, 5)
    np.testing.assert_allclose(merged.merged["a"].mean, truth.mean)
    assert merged.outlying_clients == 1, "the restored samples do not count as a client"


def ramp(first: int, samples: int) -> dict[str, Moments]:
    """Return samples that grow within an episode, as a distance or a count does."""
    steps = np.arange(first, first + samples, dtype=np.float64)
    return {"a": Moments.of(np.stack([steps, np.sqrt(steps)], axis=1))}


def test_restored_samples_are_kept_while_clients_have_few() -> None:
    earlier = ramp(0, 20_000)["a"]
    merged, truth = MergedStatistics({"a": 2}), earlier
    merged.restore({"a": earlier})
    for first in range(0, 3 * PROVEN, 50):
        for client in ("one", "two", "three"):
            one = ramp(first, 50)
            truth = truth.merged(one["a"])
            merged.add(client, one)
        np.testing.assert_allclose(merged.merged["a"].mean, truth.mean)
    assert (merged.merged["a"].count, merged.outlying_clients) == (truth.count, 0)


def test_new_clients_with_few_samples_exclude_no_other() -> None:
    merged = MergedStatistics({"a": 2})
    truth = ramp(0, 20_000)["a"]
    merged.add("first", {"a": truth})
    for client in ("second", "third", "fourth"):
        one = ramp(0, 50)
        truth = truth.merged(one["a"])
        merged.add(client, one)
    assert (merged.merged["a"].count, merged.outlying_clients) == (truth.count, 0)


def test_spoilt_large_checkpoint_recovers_with_enough_samples() -> None:
    merged = MergedStatistics({"a": 2})
    merged.restore({"a": Moments.of(np.full((2 * PROVEN, 2), LARGEST))})
    truth = push_rounds(merged, 3, PROVEN // 50)
    np.testing.assert_allclose(merged.merged["a"].mean, truth.mean)
    np.testing.assert_allclose(merged.merged["a"].variance, truth.variance)


def test_new_client_is_compared_with_clients_of_many_samples() -> None:
    rng = np.random.default_rng(21)
    merged = MergedStatistics({"a": 2})
    for client in ("one", "two", "three"):
        merged.add(client, {"a": Moments.of(rng.normal(5.0, 1.0, (PROVEN, 2)))})
    for number in range(4):
        merged.add(f"outlier {number}", outliers())
    assert (merged.merged["a"].count, merged.outlying_clients) == (3 * PROVEN, 4), (
        "four new clients of seven are excluded"
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("count", "mean"), [(0.0, 1e200), (1e-300, 1e150)])
def test_moments_of_less_than_one_sample_are_ignored(count: float, mean: float) -> None:
    merged = MergedStatistics({"a": 2})
    truth = push_rounds(merged, 3, 1)
    for client in ("one", "two", "three"):
        merged.add(client, {"a": Moments(count, np.full(2, mean), np.zeros(2))})
    assert merged.merged["a"].count == truth.count
    merged.add("client 0", samples(np.random.default_rng(23)))
    assert (merged.merged["a"].count, merged.outlying_clients) == (truth.count + 50, 1)


def test_clients_beyond_the_bound_stay_merged() -> None:
    rng = np.random.default_rng(9)
    merged, plain = MergedStatistics({"a": 2}), Moments.zeros(2)
    for number in range(3 * COMPARED_CLIENTS):
        one = samples(rng)
        plain = plain.merged(one["a"])
        merged.add(f"client {number}", one)
    np.testing.assert_allclose(merged.merged["a"].mean, plain.mean)
    assert merged.merged["a"].count == plain.count


def test_two_clients_are_not_compared() -> None:
    merged = MergedStatistics({"a": 2})
    push_rounds(merged, 1, 5)
    assert (merged.outlying_clients, merged.merged["a"].count) == (0, 500)


@pytest.mark.parametrize("named", [True, False])
def test_outliers_spoil_neither_pulls_nor_checkpoints(tmp_path: Path, named: bool) -> None:
    rng = np.random.default_rng(11)
    with (
        running(Models(statistics={"a": 2}), tmp_path) as server,
        parameter_client(server.address) as outlier,
        parameter_client(server.address) as one,
        parameter_client(server.address) as two,
        parameter_client(server.address) as three,
    ):
        for number, client in enumerate((outlier, one, two, three)):
            identity = {"client": f"c{number}"} if named else {"session_id": f"s{number}"}
            client.register(registration(**identity))
            client.pull()
        for _ in range(5):
            outlier.metrics.statistic("a", outliers()["a"])
            outlier.push(gradient(1), env_steps=1)
            for client in (one, two, three):
                client.metrics.statistic("a", samples(rng)["a"])
                last = client.push(gradient(1), env_steps=1).pulled
        assert last is not None
        np.testing.assert_allclose(last.statistics["a"].mean, [5.0, 0.0], atol=0.3)
        status = server.core.status()
        assert (status.outlying_clients, status.dropped_samples) == (1, 0)
        assert server.core.scalars()[1]["outliers/clients"] == 1.0
    with running(Models(statistics={"a": 2}), tmp_path) as again:
        np.testing.assert_allclose(again.statistics["a"].mean, [5.0, 0.0], atol=0.3)


def test_push_costs_one_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(13)
    merged, merge, merges = MergedStatistics({"a": 2}), Moments.merged, 0

    def counted(own: Moments, other: Moments) -> Moments:
        nonlocal merges
        merges += 1
        return merge(own, other)

    monkeypatch.setattr(Moments, "merged", counted)
    for number in range(700):
        merged.add(f"client {number % 5}", samples(rng))
    assert merges == 700


def test_earlier_samples_of_a_new_outlier_are_excluded() -> None:
    rng = np.random.default_rng(15)
    merged, truth = MergedStatistics({"a": 2}), Moments.zeros(2)
    for _ in range(3 * CHECK_PUSHES + 2):
        for client in ("one", "two", "three", "outlier"):
            one = samples(rng)
            truth = truth if client == "outlier" else truth.merged(one["a"])
            merged.add(client, one)
    for _ in range(CHECK_PUSHES):
        merged.add("outlier", outliers())
    assert (merged.outlying_clients, merged.merged["a"].count) == (1, truth.count)
    np.testing.assert_allclose(merged.merged["a"].mean, truth.mean)
    np.testing.assert_allclose(merged.merged["a"].m2, truth.m2)
