"""Comparison of messages, because dataclasses with arrays cannot be compared with ==."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def same(a: Any, b: Any) -> bool:
    """Return whether two messages, or parts of them, are equal in types, dtypes, shapes and bits."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        names = [field.name for field in dataclasses.fields(a)]
        return type(a) is type(b) and all(same(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def assert_same(a: Any, b: Any) -> None:
    assert same(a, b), f"{a}\n  is not\n{b}"
