from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all benchmarks as slow: `make benchmarks` measures them, `make test-slow` only runs them."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
