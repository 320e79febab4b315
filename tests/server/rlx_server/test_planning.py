"""Tests of the settings that a worker takes from the configuration."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from relaax.configuration import RlxServerSection
from relaax.server.rlx_server.workers.plan import make_client
from relaax.transport.channel import Target
from support.parameter_servers import gradient, registration, running


@pytest.mark.parametrize(("bridge", "expected"), [("grpc", 1), ("auto", 1 + 2**-12)])
def test_gradient_precision_follows_the_transport(
    bridge: str, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaax.nn.devices.use_one_thread", lambda: None)  # an earlier test may have used TensorFlow
    settings = RlxServerSection.model_validate({"bridge": bridge, "wire_precision": "float16"})
    with running() as server, contextlib.closing(make_client(settings, [Target(server.address)])) as worker:
        worker.register(registration())
        worker.pull()
        worker.push(gradient(1 + 2**-12), env_steps=1)
        np.testing.assert_array_equal(server.parameters, -gradient(expected))
