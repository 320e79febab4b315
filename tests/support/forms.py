"""Parameters of a test, of which the fast tests have some and the slow ones the rest."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def fast_and_slow(parameters: Iterable[Any], fast: Container[Any], *checks: str) -> list[Any]:
    """Mark those that are not `fast` as slow. `checks`: the files that decide their outcome (`support.unchanged`)."""
    marks = (pytest.mark.slow, pytest.mark.checks(*checks))
    return [
        each if each in fast else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=marks)
        for each in parameters
    ]
