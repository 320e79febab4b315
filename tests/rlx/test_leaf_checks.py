"""Checks of leaves. Few elements are checked in Python, many with numpy; both must have the same result."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.rlx import Discrete, ProtocolError
from relaax.rlx.leaf_checks import LeavesCheck, is_finite

sizes = pytest.mark.parametrize("size", [1, 8, 64, 65, 1000])


@sizes
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_is_finite_for_few_and_many_elements(size: int, dtype: type) -> None:
    largest = np.full((size, 1), np.finfo(dtype).max, dtype)
    assert is_finite(largest)  # even if their sum overflows
    assert is_finite(-largest)
    for wrong in (np.nan, np.inf, -np.inf):
        for place in (0, size - 1):
            numbers = largest.copy()
            numbers[place] = wrong
            assert not is_finite(numbers)
    assert not is_finite(np.array([np.inf, -np.inf], dtype))


@sizes
@pytest.mark.parametrize("start", [0, -3, 7, -(2**62)])
def test_discrete_values_out_of_range_are_refused(size: int, start: int) -> None:
    space = Discrete(5, start=start)
    check = LeavesCheck(space, size, bounded=True)
    values = np.arange(size, dtype=np.int64) % 5 + start
    check.check("action", [values])
    for wrong in (start - 1, start + 5, np.iinfo(np.int64).max, np.iinfo(np.int64).min):
        odd = values.copy()
        odd[-1] = wrong
        with pytest.raises(ProtocolError, match=rf"action( of environment {size - 1})? holds {wrong}, not"):
            check.check("action", [odd])
