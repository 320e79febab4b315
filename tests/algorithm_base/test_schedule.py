from __future__ import annotations

from relaax.algorithm_base.config import Schedule


def test_annealed_rate_falls_linearly_to_zero() -> None:
    schedule = Schedule(0.8, 200)
    assert [schedule(step) for step in (0, 50, 100, 200, 300)] == [0.8, 0.8 * 0.75, 0.4, 0.0, 0.0]


def test_rate_without_annealing_is_constant() -> None:
    assert Schedule(0.8)(10**12) == 0.8
