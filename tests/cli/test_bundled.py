"""Every configuration that comes with RELAAX runs."""

from __future__ import annotations

import pytest

from relaax.bundled import bundled_folder, bundled_names
from support.run import Runs

CONFIGURATIONS = bundled_names("config", ".yaml")


def test_each_configuration_has_a_procfile() -> None:
    assert {"da3c_gym_cartpole", "da3c_gym_boxing", "da3c_ale_boxing", "da3c_ale_pong"} <= set(CONFIGURATIONS)
    for name in CONFIGURATIONS:
        lines = (bundled_folder("config") / f"{name}.Procfile").read_text().splitlines()
        assert lines == [
            f"parameter-server: relaax-parameter-server --config config/{name}.yaml",
            f"rlx-server: relaax-rlx-server --config config/{name}.yaml",
        ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_bundled_configuration_trains(runs: Runs, name: str) -> None:
    run = runs.start("--max-steps", "1500", "--set", "run.target_return=null", "--no-progress", config=name)
    assert run.running.wait(280) == 0, run.running.report()
    summary = run.summary
    assert summary["status"] == "max_steps"
    assert summary["updates"] > 0
    frame_skip = 1 if "cartpole" in name else 4
    assert summary["frames"] == frame_skip * summary["env_steps"]
