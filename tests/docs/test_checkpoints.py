"""The commands and programs of docs/checkpoints.md run unchanged, in order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import relaax.policy
from relaax.algorithm_base import load_algorithm
from relaax.bundled import bundled_folder
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.client.connection.values import values_of
from relaax.hosting.fingerprint import fingerprint
from support.pages import DOCS, block
from support.processes import Processes
from support.service import RELAAX

PAGE = DOCS / "checkpoints.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the run of the page, which has two checkpoints."""
    env = gymnasium.make("CartPole-v1")
    spaces = [values_of(space).space for space in (env.observation_space, env.action_space)]
    env.close()
    algorithm = load_algorithm("da3c", bundled_folder("algorithms"))
    config = algorithm.configure({"path": "da3c", "normalize_rewards": None, "network": {"dense": [8]}})
    parameters = algorithm.ParameterServer(config, *spaces).initial_parameters(1)
    manifest = {
        "fingerprint": json.loads(fingerprint("da3c", config, *spaces)),
        "shards": [{"part": "shard-0", "start": 0, "end": len(parameters)}],
    }
    manager = CheckpointManager(LocalStore(tmp_path / "runs" / "cartpole" / "checkpoints"))
    for global_step, mean_return in ((97290, 500.0), (120125, 480.0)):
        part = {"parameters": parameters + np.float32(0.01 * global_step / 1e5)}
        manager.save(global_step, {"shard-0": part}, {**manifest, "mean_return": mean_return})
    return tmp_path


@pytest.mark.slow
def test_commands_and_programs_of_page_run_in_order(folder: Path, processes: Processes) -> None:
    output = {}
    for name in ("look", "verify", "copy", "export"):
        program, *arguments = block(PAGE, name).split()
        assert program == "relaax"
        done = processes.start(*RELAAX, *arguments, cwd=folder)
        assert done.wait(120) == 0, done.report()
        output[name] = done.lines
    assert [line.split()[0] for line in output["look"] if line.strip().startswith("0000")] == [
        "00000002-120125",
        "00000001-97290",
    ]
    assert output["verify"] == ["00000002-120125  is intact", "00000001-97290  is intact"]
    assert CheckpointManager(LocalStore(folder / "kept")).published() == ["00000001-97290"]
    for name in ("act.py", "many.py"):
        (folder / name).write_text(block(PAGE, name), encoding="utf-8")
        done = processes.start(sys.executable, name, cwd=folder)
        assert done.wait(240) == 0, done.report()
        output[name] = done.lines
    shown = block(PAGE, "act.py").partition("# ")[2].partition("\n")[0]
    assert output["act.py"][0] == shown == repr(relaax.policy.load(folder / "cartpole.safetensors"))
    assert [line.split()[0] for line in output["act.py"][1:]] == ["return"] * 3


def test_table_names_attributes_of_policy() -> None:
    for name in ("act", "reset", "algorithm", "global_step", "configuration", "observation_space", "description"):
        assert f"`policy.{name}" in PAGE.read_text(encoding="utf-8")
