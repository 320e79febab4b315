from __future__ import annotations

import json
import math

import pytest

from relaax.metrics import RecentReturns


def test_best_is_largest_mean_of_full_windows() -> None:
    returns = RecentReturns(window=2)
    seen = []
    for value in (10.0, 20.0, 2.0, 4.0):
        returns.add(value)
        seen.append((returns.mean, returns.best))
    assert seen == [(10.0, None), (15.0, 15.0), (11.0, 15.0), (3.0, 15.0)]
    assert returns.episodes == 4


def test_mean_and_best_are_none_before_first_episode() -> None:
    assert (RecentReturns().mean, RecentReturns().best) == (None, None)


def test_returns_are_restored_from_json() -> None:
    returns, other = RecentReturns(window=2), RecentReturns(window=2)
    for value in (10.0, 20.0, 2.0):
        returns.add(value)
    other.restore(json.loads(json.dumps(returns.as_json())))
    assert (other.mean, other.best, other.episodes) == (11.0, 15.0, 3)


def test_infinite_and_overflowing_returns_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    returns = RecentReturns(window=3)
    for value in (1.0, 1.7e308, 1.7e308, 3.0, -math.inf, math.nan, 5.0):
        returns.add(value)
    assert (returns.mean, returns.best, returns.episodes) == (3.0, 3.0, 7)
    assert caplog.text.count("is not counted in the metrics") == 1, "one line a minute"


def test_overflowing_returns_of_checkpoint_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    returns = RecentReturns(window=3)
    returns.restore({"episodes": 9, "last": [1.7e308, 1.7e308, 4.0], "best": math.inf})
    assert (returns.mean, returns.best, returns.episodes) == (4.0, None, 9)
    assert "2 of the last 3 are dropped, the best mean return is unknown" in caplog.text


def honest_and_liar(returns: RecentReturns, lie: float, honest: int = 3, lies: int = 1, rounds: int = 200) -> None:
    """Add episodes of `honest` clients with returns from 10 to 60, and in each round `lies` episodes of a liar."""
    for number in range(rounds):
        for _ in range(lies):
            returns.add(lie, "liar")
        for client in range(honest):
            returns.add(10.0 + (7 * number + 13 * client) % 51, f"client {client}")


PRESENT = {"liar", *(f"client {number}" for number in range(3))}


def test_return_far_beyond_other_clients_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    returns = RecentReturns()
    honest_and_liar(returns, 2e15)
    assert returns.mean is not None and 30.0 < returns.mean < 40.0
    assert returns.best is not None and returns.best < 60.0
    assert (returns.discarded, returns.episodes) == (200, 800)
    assert "2e+15 of liar is not counted" in caplog.text


@pytest.mark.parametrize("lies", [1, 500])
def test_one_client_cannot_raise_agreed_return_alone(lies: int) -> None:
    returns = RecentReturns()
    honest_and_liar(returns, 500.0, lies=lies)
    agreed = returns.agreed(PRESENT)
    assert agreed is not None and agreed <= 60.0
    assert returns.mean is not None and returns.mean > agreed, "a plausible return counts in the mean"


def test_agreed_return_of_honest_clients_is_near_mean() -> None:
    returns = RecentReturns()
    honest_and_liar(returns, 40.0)
    agreed = returns.agreed(PRESENT)
    assert returns.mean is not None
    assert agreed == pytest.approx(returns.mean, rel=0.05)
    assert returns.discarded == 0


def test_agreed_return_ignores_disconnected_clients() -> None:
    returns = RecentReturns()
    honest_and_liar(returns, 40.0)
    for _ in range(100):
        returns.add(500.0, "client 0")
    assert (returns.mean, returns.agreed({"client 0"}), returns.agreed(())) == (500.0, 500.0, 500.0)


def test_first_success_of_one_client_counts() -> None:
    returns = RecentReturns()
    for number in range(50):
        returns.add(float(number == 40), f"client {number % 5}")
    assert (returns.mean, returns.discarded) == (1 / 50, 0)


def test_lie_before_other_clients_is_removed_from_window() -> None:
    returns = RecentReturns()
    for _ in range(150):
        returns.add(1e15, "liar")
    assert returns.best == 1e15
    honest_and_liar(returns, 1e15, rounds=2)
    assert returns.mean is not None and returns.mean <= 60.0
    assert returns.best is None


def test_first_returns_after_restart_do_not_drop_earlier_ones() -> None:
    before, after = RecentReturns(window=4), RecentReturns(window=4)
    for _ in range(4):
        before.add(5000.0, "client")
    after.restore(before.as_json())
    for client in ("one", "two", "three"):
        after.add(2.0, client)  # the first episodes to end are the short ones
    assert (after.mean, after.best, after.discarded) == ((5000.0 + 3 * 2.0) / 4, 5000.0, 0)
