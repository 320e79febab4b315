from __future__ import annotations

import pytest


@pytest.fixture
def unhurried(short: bool) -> None:
    """Skip the test in the short form, which has another test of most of it."""
    if short:
        pytest.skip("too long for --short, which has a test of the same kind")
