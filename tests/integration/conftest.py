from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.service import Service, started_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that trains CartPole, shared by the tests of a module; each test checks only its own additions."""
    with started_service(tmp_path_factory.mktemp("service")) as started:
        yield started
