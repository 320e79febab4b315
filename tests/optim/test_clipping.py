from __future__ import annotations

import numpy as np
import pytest

from relaax.optim.clipping import clip_by_norm
from relaax.optim.vector import is_finite


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(2.5, [1.5, -2.0]), (5.0, [3.0, -4.0]), (40.0, [3.0, -4.0]), (None, [3.0, -4.0])],
)
def test_gradient_is_clipped_to_norm_and_keeps_direction(limit: float | None, expected: list[float]) -> None:
    gradient = np.array([3, -4], np.float32)  # norm 5
    assert clip_by_norm(gradient, limit) == pytest.approx(5.0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_zero_gradient_stays_zero() -> None:
    gradient = np.zeros(3, np.float32)
    assert (clip_by_norm(gradient, 1.0), gradient.tolist()) == (0.0, [0.0, 0.0, 0.0])


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_gradient_that_is_not_finite_stays_so(number: float) -> None:
    gradient = np.array([number, 1], np.float32)
    assert not np.isfinite(clip_by_norm(gradient, 1.0))
    assert not np.isfinite(gradient).all()


def test_gradient_whose_norm_overflows_is_not_made_zero() -> None:
    gradient = np.full(100, 1e20, np.float32)
    assert clip_by_norm(gradient, 40.0) == np.inf
    assert not is_finite(gradient), "so the server discards it"
