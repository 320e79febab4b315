"""Formatting of numbers for people."""

from __future__ import annotations


def shown(value: float) -> str:
    """Format with one decimal, or three digits if small or huge: 475.2, -1,234.5, 19.3, 0.74, 0.0133, 2.5e+12."""
    return format(value, ",.1f" if 10 <= abs(value) < 1e9 else ".3g")
