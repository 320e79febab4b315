"""Fixtures of the tests of parameter clients."""

from __future__ import annotations

from typing import Any

import pytest

from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.service.service import ParameterService


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards from which the target network was pulled, in order."""
    asked: list[int] = []
    pull = ParameterService.pull

    def counted(service: ParameterService, request: pb.PullRequest) -> Any:
        if request.vector:
            asked.append(service._core.position.index)
        return pull(service, request)

    monkeypatch.setattr(ParameterService, "pull", counted)
    return asked
