from __future__ import annotations

import pytest


@pytest.fixture
def skipped_by_short(short: bool) -> None:
    """Skip the test with --short, which runs a similar test."""
    if short:
        pytest.skip("too long for --short, which has a test of the same kind")
