"""Mark some parameters of a test as slow."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def fast_and_slow(parameters: Iterable[Any], fast: Container[Any], *checks: str) -> list[Any]:
    """Return the parameters, with those not in `fast` marked as slow.

    `checks`: the files and folders that the slow tests depend on (see `support.unchanged`).
    """
    marks = (pytest.mark.slow, pytest.mark.checks(*checks))
    return [
        each if each in fast else pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=marks)
        for each in parameters
    ]
