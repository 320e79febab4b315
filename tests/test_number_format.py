"""Numbers of any size, as people read them."""

from __future__ import annotations

import pytest

from relaax.console import shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.74, "0.74"),
        (0.7449, "0.745"),
        (-0.0133, "-0.0133"),
        (3.25, "3.25"),
        (9.999, "10"),
        (19.33, "19.3"),
        (475.15, "475.1"),
        (-1234.5, "-1,234.5"),
        (-2.5e12, "-2.5e+12"),
    ],
)
def test_small_numbers_keep_three_digits_and_large_ones_a_decimal(value: float, text: str) -> None:
    assert shown(value) == text
