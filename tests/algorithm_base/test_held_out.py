from __future__ import annotations

import numpy as np

from relaax.algorithm_base.values import KEEP_INTERVAL, REPORT_SECONDS, HeldOutStates


def states(size: int, steps: int) -> HeldOutStates:
    """Return held-out states after `steps` steps of two environments. Each input is the number of its step."""
    held_out, inputs = HeldOutStates(size), np.zeros((2, 1), np.float32)
    for step in range(steps):
        inputs[:] = step  # the agent reuses its buffer
        held_out.add(inputs)
    return held_out


def test_held_out_states_are_kept_at_intervals() -> None:
    kept = states(5, 10 * KEEP_INTERVAL).due(0.0)
    assert kept is not None
    assert kept[:, 0].tolist() == [0, 0, KEEP_INTERVAL, KEEP_INTERVAL, 2 * KEEP_INTERVAL]


def test_held_out_states_are_not_due_until_complete() -> None:
    assert states(5, 2 * KEEP_INTERVAL).due(0.0) is None
    assert states(0, 10).due(0.0) is None


def test_held_out_states_are_due_once_per_interval() -> None:
    held_out = states(2, 1)
    asked = [held_out.due(now) is not None for now in (100.0, 101.0, 100.0 + REPORT_SECONDS, 101.0 + REPORT_SECONDS)]
    assert asked == [True, False, True, False]
