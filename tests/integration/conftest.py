from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.service import Service, started_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that trains CartPole, for all tests of a module; each looks at what it adds itself."""
    with started_service(tmp_path_factory.mktemp("service")) as started:
        yield started
