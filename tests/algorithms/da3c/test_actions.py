from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Tuple, load_algorithm
from relaax.algorithm_base.acting.actions import ActionMap
from relaax.algorithm_base.testing import make_agent

U = np.array([[-1.0, -1.0, -1.0], [0.5, 0.5, 0.5], [7.0, 7.0, 7.0]], np.float32)


def test_unit_interval_spans_the_bounds() -> None:
    (actions,) = ActionMap(Box([-2, 0, -0.5], [2, 10, -0.25]))(U)
    assert actions.tolist() == [[-2.0, 0.0, -0.5], [1.0, 7.5, -0.3125], [2.0, 10.0, -0.25]]
    assert actions.dtype == np.float32


def test_unbounded_elements_are_unchanged() -> None:
    (actions,) = ActionMap(Box([-np.inf, 0, -np.inf], [np.inf, np.inf, 3]))(U)
    assert actions.tolist() == [[-1.0, 0.0, -1.0], [0.5, 0.5, 0.5], [7.0, 7.0, 3.0]]


@pytest.mark.parametrize("bound", [1e6, float(np.finfo(np.float32).max), float(np.finfo(np.float64).max)])
def test_too_large_bounds_count_as_unbounded(bound: float) -> None:
    map_ = ActionMap(Box([-bound, 0, -bound], [bound, bound, 3], dtype="float64"))
    (actions,) = map_(U)
    assert actions.tolist() == [[-1.0, 0.0, -1.0], [0.5, 0.5, 0.5], [7.0, 7.0, 3.0]]
    assert map_.unused_bounds() == (
        f"the bound {-bound:g} of action element 0 is not below 1,000,000; the element counts as unbounded and "
        "its first actions are near 0; if the bound is real, scale the action space"
    )


def test_bounds_below_the_limit_are_spanned() -> None:
    map_ = ActionMap(Box([-9e5, -np.inf], [9e5, np.inf], dtype="float64"))
    assert map_(np.array([[0.5, 0.5]]))[0].tolist() == [[4.5e5, 0.5]]
    assert map_.unused_bounds() is None


def test_actions_bounded_on_one_side_begin_within_the_bound() -> None:
    map_ = ActionMap(Box([5, -np.inf, -3], [np.inf, -5, 3.4e38], dtype="float64"))
    assert map_(U)[0].tolist() == [[5.0, -6.0, -1.0], [5.5, -5.0, 0.5], [12.0, -5.0, 7.0]]
    assert "the bound 3.4e+38 of action element 2" in str(map_.unused_bounds())


def test_unused_bounds_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = load_algorithm("da3c_cont", Path())
    config = algorithm.configure({"path": "da3c_cont", "lstm": False, "network": {"dense": [4]}})
    make_agent(algorithm, config, Box(-1, 1, (2,)), Box(-1e6, 1e6, (1,)))
    assert [record.getMessage()[:42] for record in caplog.records] == ["the bound -1e+06 of action element 0 is no"]


def test_rounding_stays_within_the_bounds() -> None:
    box = Box(np.float32(0.1), np.float32(0.7), shape=(1,))
    for u in np.linspace(-1.5, 1.5, 301, dtype=np.float32):
        (actions,) = ActionMap(box)(np.array([[u]]))
        assert box.low[0] <= actions[0, 0] <= box.high[0]


def test_action_numbers_are_split_among_the_parts() -> None:
    space = Dict({"b": Tuple([Box(-1, 1, shape=(2, 1)), Box(0, 4, shape=())]), "a": Box(shape=(1,), dtype="float64")})
    u = np.array([[5.0, 0.25, -0.25, 0.5]], np.float32)
    a, b0, b1 = ActionMap(space)(u)
    assert (a.tolist(), b0.tolist(), b1.tolist()) == ([[5.0]], [[[0.25], [-0.25]]], [3.0])
    assert (a.dtype, b0.dtype) == (np.float64, np.float32)
