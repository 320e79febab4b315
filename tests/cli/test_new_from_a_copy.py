"""A bundled algorithm's directory, copied out and nothing else, trains where it was copied to."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from relaax.bundled import bundled_folder
from support.run import Runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "name", "configuration"),
    [("da3c", "da3c", "da3c_gym_cartpole"), ("da3c_cont", "renamed", "da3cc_gym_pendulum")],
)
def test_a_copied_out_algorithm_trains(
    algorithm: str, name: str, configuration: str, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """da3c_cont builds on `..da3c`, which is the bundled one where there is none beside the copy."""
    monkeypatch.chdir(tmp_path)  # not the checkout
    copy = Path(shutil.copytree(bundled_folder("algorithms") / algorithm, tmp_path / "elsewhere" / name))
    text = (bundled_folder("config") / f"{configuration}.yaml").read_text(encoding="utf-8")
    text, found = re.subn(r"(?m)^  path: .*$", f"  path: {name}", text)
    assert found == 1
    config = copy.parent / "mine.yaml"
    config.write_text(text, encoding="utf-8")

    options = ("--clients", "1", "--max-steps", "1000", "--set", "run.target_return=null", "--no-progress")
    run = runs.start(*options, config=config)
    assert run.running.wait(240) == 0, run.running.report()
    assert run.summary["status"] == "max_steps"
    assert run.summary["updates"] > 0
    for server in ("parameter-server", "rlx-server"):
        assert f"algorithm {name} from {copy}" in run.log(server)
