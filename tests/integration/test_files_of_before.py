"""What an earlier version wrote goes on working: see tests/data/before/README.md."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relaax.policy
from relaax.algorithm_base import first_difference, load_algorithm
from relaax.algorithm_base.loader import load_config
from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.configuration import load_configuration
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ShardPosition
from support.processes import Processes
from support.run import PATIENCE
from support.service import RELAAX, started_service

BEFORE = Path(__file__).resolve().parent.parent / "data" / "before"
RUNS = ("cartpole", "sharded", "lstm")
SET = ("--clients", "2", "--envs-per-client", "2", "--seed", "1", "--set", "algorithm.network.dense=[8]")
COMMANDS = {
    "cartpole": ("da3c_gym_cartpole", *SET),
    "sharded": ("da3c_gym_cartpole", *SET, "--set", "parameter-server.shards=2"),
    "lstm": ("da3cc_gym_pendulum", *SET, "--set", "algorithm.network.lstm_size=8"),
}


def copied(name: str, folder: Path) -> Path:
    """A run directory in a place of its own."""
    return Path(shutil.copytree(BEFORE / name, folder / name))


def checkpoint_of(run: Path) -> Checkpoint:
    checkpoint = CheckpointManager(LocalStore(run / "checkpoints")).restore()
    assert checkpoint is not None
    return checkpoint


def whole(parts: dict[str, Any], shards: int) -> dict[str, bytes]:
    """The vectors of all shards, put together."""
    names = {name for part in parts.values() for name in part if not name.startswith("statistics/")}
    return {
        name: b"".join(np.ascontiguousarray(parts[f"shard-{index}"][name]).tobytes() for index in range(shards))
        for name in names
    }


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("name", RUNS)
def test_every_number_of_its_checkpoint_comes_back(tmp_path: Path, name: str, shards: int) -> None:
    run = copied(name, tmp_path)
    checkpoint = checkpoint_of(run)
    configuration = load_configuration(run / "configuration.yaml", [], {}, load_config)
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    models = AlgorithmModels(algorithm, algorithm.configure(configuration.algorithm))
    cores = [ParameterServerCore(models, first_difference, position=ShardPosition(i, shards)) for i in range(shards)]
    states = []
    for core in cores:
        core.resume(checkpoint, models.for_checkpoint(checkpoint.manifest))
        states.append(core.state())
    leader = states[0]
    assert leader is not None
    assert (leader.global_step, leader.manifest["frames"]) == (checkpoint.manifest["global_step"],) * 2
    assert leader.manifest["returns"] == checkpoint.manifest["returns"]
    there = whole(dict(checkpoint.parts), len(checkpoint.manifest["shards"]))
    here = whole({name: part for state in states if state for name, part in state.parts.items()}, shards)
    assert set(there) == {"parameters", "slots/mean_square"} <= set(here)
    assert {name: here[name] for name in there} == there
    statistics = {key: value for key, value in checkpoint.parts["shard-0"].items() if key.startswith("statistics/")}
    assert bool(statistics) is (name == "lstm")
    assert all(np.array_equal(leader.parts["shard-0"][key], value) for key, value in statistics.items())


@pytest.mark.parametrize("name", RUNS)
def test_its_run_directory_is_resumed(processes: Processes, tmp_path: Path, name: str) -> None:
    run = copied(name, tmp_path)
    before = json.loads((run / "summary.json").read_text())["env_steps"]
    assert before == checkpoint_of(run).manifest["global_step"]
    resumed = processes.start(
        *(*RELAAX, "run", *COMMANDS[name], "--target-return", "1000", "--max-steps", before + 2000),
        *("--run-dir", run, "--no-progress"),
    )
    assert resumed.wait(PATIENCE) == 3, resumed.report()  # it ends without reaching the target
    summary = json.loads((run / "summary.json").read_text())
    assert before + 2000 <= summary["env_steps"] == checkpoint_of(run).manifest["global_step"]
    assert summary["lost_steps"] == 0
    assert f"at global step {before}" in (run / "logs" / "parameter-server.log").read_text()


def test_commands_read_its_files(processes: Processes, tmp_path: Path) -> None:
    run = copied("sharded", tmp_path)
    exported, csv = tmp_path / "exported", tmp_path / "curve.csv"
    for words in (
        ("checkpoints", "list", run),
        ("checkpoints", "verify", run),
        ("checkpoints", "export", run, exported),
        ("plot", run, "-o", tmp_path / "curve.png", "--csv", csv),
        ("doctor", run / "configuration.yaml"),
    ):
        command = processes.start(*RELAAX, *words)
        assert command.wait(PATIENCE) == 0, command.report()
    assert relaax.policy.load(exported).global_step == checkpoint_of(run).manifest["global_step"]
    assert len(csv.read_text().splitlines()) > 3


@pytest.mark.parametrize(("name", "size"), [("cartpole", 4), ("lstm", 3)])
def test_its_policy_acts_as_it_did(name: str, size: int) -> None:
    policy = relaax.policy.load(BEFORE / f"{name}.policy")
    rng = np.random.default_rng(5)
    actions = []
    for index in range(20):
        observation = rng.normal(0, 1, size).astype(np.float32)
        if name == "lstm":
            observation = np.clip(observation, -1, 1)
        actions.append(policy.act(observation, first=index % 10 == 0))
    assert np.allclose(actions, json.loads((BEFORE / "actions.json").read_text())[name], rtol=1e-5, atol=1e-6)


PROGRAM = '''
"""A client program of before: `main ADDRESS KIND`."""
import sys
import numpy as np
import relaax.client
from relaax.client import Box, Client, Discrete, Failure, TrainingFinished, VectorClient

assert "client.zip" in relaax.client.__file__
address, kind = sys.argv[1:]
spaces = dict(observation_space=Box(shape=(3,)), action_space=Discrete(2))
state = lambda *n: np.random.default_rng(0).normal(size=(*n, 3)).astype(np.float32)
try:
    if kind == "refused":
        Client(address, **{**spaces, "action_space": Box(-1, 1, (2,))}).init(state())
    elif kind == "single":
        with Client(address, **spaces) as client:
            while True:
                assert client.init(state()) in (0, 1)
                for _ in range(9):
                    assert client.send(1.0, state()) in (0, 1)
                assert client.reset(0.5) == 9.5
    else:
        with VectorClient(address, environments=4, **spaces) as client:
            actions, ended = client.init(state(4)), np.zeros(4, bool)
            for step in range(10**6):
                assert actions.shape == (4,)
                ended[:] = step % 10 == 9
                actions = client.step(np.ones(4), state(4), ended)
except TrainingFinished as finished:
    print("finished:", finished)
except Failure as failure:
    print("refused:", failure)
'''


@pytest.mark.parametrize("kind", ["single", "vector", "refused"])
def test_its_client_is_served(processes: Processes, tmp_path: Path, kind: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started_service(tmp_path, max_global_step=400) as service:
        program = processes.start(
            *(sys.executable, tmp_path / "program.py", service.address, kind),
            env={**os.environ, "PYTHONPATH": str(BEFORE / "client.zip")},
        )
        assert program.wait(PATIENCE) == 0, program.report()
        status = service.status
    said = "\n".join(program.lines)
    if kind == "refused":
        assert "refused:" in said
        assert "Discrete" in said
        assert status.global_step == 0
    else:
        assert "finished:" in said
        assert (status.global_step >= 400, status.finished) == (True, True)
        assert status.episodes > 10
