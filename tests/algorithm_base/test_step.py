from __future__ import annotations

import numpy as np

from relaax.algorithm_base import Step


def mask(*flags: int) -> np.ndarray:
    return np.array(flags, np.bool_)


def test_what_ended_and_what_counted() -> None:
    step = Step(np.zeros(4), [np.zeros((4, 2))], mask(1, 0, 0, 0), mask(0, 1, 0, 0), mask(0, 0, 1, 0))
    assert step.ended.tolist() == [True, True, False, False]
    assert step.env_steps == 3
    assert type(step.env_steps) is int
    assert step.final_observations is None
