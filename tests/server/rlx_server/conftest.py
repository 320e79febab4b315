from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.offline import start_offline_server
from support.processes import Processes, Running

Serve = Callable[..., tuple[Running, str]]


@pytest.fixture
def worker_start() -> str:
    """Return how servers start their workers; tests that check fork and spawn are parametrised over it."""
    return "fork"


@pytest.fixture
def serve(processes: Processes, tmp_path: Path, worker_start: str) -> Serve:
    """Return a function that starts an RLX server with the given options and settings."""

    def start(*options: str, **settings: Any) -> tuple[Running, str]:
        return start_offline_server(processes, tmp_path, *options, **{"worker_start": worker_start, **settings})

    return start


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Start one RLX server for all tests that need no settings of their own and do not change its state."""
    folder = tmp_path_factory.mktemp("shared")
    with Processes(folder) as processes:
        yield start_offline_server(processes, folder, heartbeat=0.2, max_frame_megabytes=1)
