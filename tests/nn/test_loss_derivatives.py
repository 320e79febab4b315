"""Engines refuse derivatives of a loss that do not have the form of the outputs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from relaax.nn.engine import Engine
from relaax.nn.host.engine import HostEngine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import NetworkSpec
from relaax.nn.tensorflow_engine import TensorFlowEngine

SPEC = NetworkSpec((4,), {"policy": 3, "value": 1}, (8,))
POLICY = np.zeros((5, 3), np.float32)


@pytest.fixture(params=["host", "tensorflow"], scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    return HostEngine(SPEC, np.float32, (5, 1)) if request.param == "host" else TensorFlowEngine(SPEC, np.float32)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "a loss must return a dict with its derivative by each head's outputs, not None"),
        ({"policy": POLICY}, "by the outputs of head 'value': it returned policy"),
        ({"policy": POLICY, "valu": POLICY[:, :1]}, "by the outputs of head 'value': it returned policy, valu"),
        ({}, "by the outputs of head 'policy': it returned nothing"),
        ({"policy": POLICY, "value": POLICY[:, 0]}, "by head 'value' has shape (5,); the outputs have (5, 1)"),
        ({"policy": POLICY[:1], "value": POLICY[:, :1]}, "by head 'policy' has shape (1, 3); the outputs have (5, 3)"),
        ({"policy": POLICY, "value": 0.0}, "by head 'value' has shape (); the outputs have (5, 1)"),
    ],
)
def test_derivative_of_other_form_is_refused(engine: Engine, returned: Any, sentence: str) -> None:
    engine.set_parameters(orthogonal_parameters(SPEC, 1, {"policy": 1.0, "value": 1.0}))
    inputs, state, restart = np.ones((5, 1, 4), np.float32), np.zeros((1, 0), np.float32), np.zeros((5, 1), np.bool_)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        engine.gradient(inputs, state, restart, lambda outputs, part: returned)
