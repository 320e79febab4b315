from __future__ import annotations

import json

from relaax.metrics import EpisodeReturns


def test_mean_of_the_window_and_the_best_of_full_windows() -> None:
    returns = EpisodeReturns(window=2)
    seen = []
    for value in (10.0, 20.0, 2.0, 4.0):
        returns.add(value)
        seen.append((returns.mean, returns.best))
    assert seen == [(10.0, None), (15.0, 15.0), (11.0, 15.0), (3.0, 15.0)]
    assert returns.episodes == 4


def test_nothing_is_known_before_the_first_episode() -> None:
    assert (EpisodeReturns().mean, EpisodeReturns().best) == (None, None)


def test_it_survives_json() -> None:
    returns, other = EpisodeReturns(window=2), EpisodeReturns(window=2)
    for value in (10.0, 20.0, 2.0):
        returns.add(value)
    other.restore(json.loads(json.dumps(returns.as_json())))
    assert (other.mean, other.best, other.episodes) == (11.0, 15.0, 3)
