"""What the client costs: the figure is measured over a real connection, and means what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaax import rlx
from relaax.cli.bench.client_overhead import client_overhead


@pytest.mark.parametrize(
    "observation", [rlx.Box(shape=(4,)), rlx.Dict({"place": rlx.Discrete(3, start=5), "seen": rlx.MultiBinary(2)})]
)
def test_what_a_message_and_a_step_cost(tmp_path: Path, observation: rlx.Space) -> None:
    found = client_overhead(observation, rlx.Discrete(2), 4, tmp_path, messages=60)
    assert found["us_per_message"] > 0
    assert found["us_per_step"] == pytest.approx(found["us_per_message"] / 4, abs=0.01)
