from __future__ import annotations

import numpy as np

from relaax.algorithm_base import StepResult


def mask(*flags: int) -> np.ndarray:
    return np.array(flags, np.bool_)


def test_ended_and_env_steps_follow_the_masks() -> None:
    step = StepResult(np.zeros(4), [np.zeros((4, 2))], mask(1, 0, 0, 0), mask(0, 1, 0, 0), mask(0, 0, 1, 0))
    assert step.ended.tolist() == [True, True, False, False]
    assert step.env_steps == 3
    assert type(step.env_steps) is int
    assert step.final_observations is None


def test_step_with_false_masks_is_plain_and_reuses_them() -> None:
    none = mask(0, 0)
    step = StepResult(np.zeros(2), [np.zeros((2, 2))], none, none, none)
    assert step.plain
    assert step.ended is none
    assert step.restart is none
    assert step.env_steps == 2
    marked = StepResult(np.zeros(2), [np.zeros((2, 2))], mask(0, 1), none, none)
    assert not marked.plain
    assert marked.ended.tolist() == marked.restart.tolist() == [False, True]
