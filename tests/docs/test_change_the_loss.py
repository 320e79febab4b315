"""An algorithm that is copied as its README describes learns with its own loss."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.algorithm_base.testing import RandomEnvironments, make_agent
from support.pages import ROOT, block

VECTOR = Box(-1, 1, shape=(4,))
LOSS = "        return by_outputs\n"
NO_LOSS = "        return {head: 0 * by_output for head, by_output in by_outputs.items()}\n"


def largest_gradient(path: str, folder: Path, action: Any, **keys: Any) -> float:
    algorithm = load_algorithm(path, folder)
    config = algorithm.configure({"path": path, "episode_len": 5, "network": {"dense": [8]}, **keys})
    agent, parameters = make_agent(algorithm, config, VECTOR, action, environments=2)
    environments = RandomEnvironments(VECTOR, action, 2)
    actions = agent.reset(environments.reset())
    while not parameters.pushes:
        actions = agent.step(environments.step(actions))
        agent.learn()
    agent.close()
    return float(np.abs(parameters.pushes[0].gradient).max())


@pytest.mark.slow
@pytest.mark.checks("algorithms", "relaax/cli/new")
@pytest.mark.parametrize(
    ("name", "path", "file", "action"),
    [
        ("da3c", "my_da3c", "loss.py", Discrete(3)),
        ("da3c_cont", "my_cont", "loss.py", Box(-1, 1, (2,))),
        ("ppo", "my_ppo", "clipped_loss.py", Discrete(3)),
    ],
)
def test_copied_algorithm_uses_its_own_loss(name: str, path: str, file: str, action: Any, tmp_path: Path) -> None:
    script = block(ROOT / "algorithms" / name / "README.md", "loss")
    path_of_commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    gradients = {}
    copied = tmp_path / "copied"
    copied.mkdir()
    subprocess.run(["sh", "-ec", script], cwd=copied, check=True, env={**os.environ, "PATH": path_of_commands})
    # Each loss has its own folder, because an imported module is not loaded again.
    for loss in (LOSS, NO_LOSS):
        folder = tmp_path / str(len(loss))
        shutil.copytree(copied, folder)
        source = folder / path / file
        assert LOSS in source.read_text()
        source.write_text(source.read_text().replace(LOSS, loss))
        for lstm in (False, True):
            gradients[loss is NO_LOSS, lstm] = largest_gradient(path, folder, action, lstm=lstm)
    assert gradients.pop((True, False)) == gradients.pop((True, True)) == 0.0
    assert min(gradients.values()) > 1e-3
