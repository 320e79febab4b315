"""Split the parameters of a test between the fast tests and the slow ones."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def fast_and_slow(parameters: Iterable[Any], fast: Container[Any], *checks: str) -> list[Any]:
    """Mark the parameters that are not in `fast` as slow. checks: files and folders (see `support.unchanged`)."""
    marks = (pytest.mark.slow, pytest.mark.checks(*checks))
    return [
        each if each in fast else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=marks)
        for each in parameters
    ]
