from __future__ import annotations

import json
import math

import pytest

from relaax.metrics import RecentReturns


def test_mean_of_the_window_and_the_best_of_full_windows() -> None:
    returns = RecentReturns(window=2)
    seen = []
    for value in (10.0, 20.0, 2.0, 4.0):
        returns.add(value)
        seen.append((returns.mean, returns.best))
    assert seen == [(10.0, None), (15.0, 15.0), (11.0, 15.0), (3.0, 15.0)]
    assert returns.episodes == 4


def test_nothing_is_known_before_the_first_episode() -> None:
    assert (RecentReturns().mean, RecentReturns().best) == (None, None)


def test_it_survives_json() -> None:
    returns, other = RecentReturns(window=2), RecentReturns(window=2)
    for value in (10.0, 20.0, 2.0):
        returns.add(value)
    other.restore(json.loads(json.dumps(returns.as_json())))
    assert (other.mean, other.best, other.episodes) == (11.0, 15.0, 3)


def test_a_return_that_no_mean_could_have_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    returns = RecentReturns(window=3)
    for value in (1.0, 1.7e308, 1.7e308, 3.0, -math.inf, math.nan, 5.0):
        returns.add(value)
    assert (returns.mean, returns.best, returns.episodes) == (3.0, 3.0, 7)
    assert caplog.text.count("is left out of the metrics") == 1, "a line a minute"


def test_a_checkpoint_that_has_such_returns_is_taken_back_without_them(caplog: pytest.LogCaptureFixture) -> None:
    returns = RecentReturns(window=3)
    returns.restore({"episodes": 9, "last": [1.7e308, 1.7e308, 4.0], "best": math.inf})
    assert (returns.mean, returns.best, returns.episodes) == (4.0, None, 9)
    assert "2 of the last 3 are dropped, the best mean return is unknown" in caplog.text
