"""The inference process of a real RLX server: it acts for all workers, and training continues after it is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from relaax.bundled import bundled_folder
from relaax.client import Box, Discrete, VectorClient
from support.acting_checkpoints import KEYS, Checkpoints
from support.metrics_page import scalars
from support.processes import Processes, Running, wait_until
from support.service import LEARNER, PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, status_of

pytestmark = [
    pytest.mark.checks("relaax/server", "relaax/replay", "relaax/nn", "algorithms"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memory by descriptor"),
    pytest.mark.timeout(300),
]

CLIENT = str(bundled_folder("environments") / "OpenAI_Gym" / "main.py")
ALGORITHMS = {
    "apex": ("CartPole-v1", {"batch_size": 16, "network": {"dense": [8]}}),
    "sac": ("Pendulum-v1", {"batch_size": 16, "network": {"dense": [8]}, "learner": "separate"}),
}


def write_config(folder: Path, path: str) -> Path:
    document = {
        "relaax-parameter-server": {"metrics-dir": str(folder / "metrics")},
        "relaax-replay-server": {"shards": 1},
        "relaax-rlx-server": {"inference": "shared", "log_level": "DEBUG"},
        "algorithm": {"path": path, "learning_starts": 50, "samples_per_insert": None, **ALGORITHMS[path][1]},
    }
    file = folder / "shared.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return file


def inference_pids(server: Running) -> list[int]:
    """Return the process ids of all inference processes that the server has started."""
    return [int(pid) for pid in re.findall(r"started the inference process (\d+)", server.stderr)]


@pytest.mark.parametrize("path", [pytest.param("sac", marks=pytest.mark.slow), "apex"])
def test_training_continues_after_the_process_is_killed(processes: Processes, tmp_path: Path, path: str) -> None:
    config = write_config(tmp_path, path)
    bind = ("--config", config, "--bind", "127.0.0.1:0")
    _, parameter_server = processes.start_server(*PARAMETER_SERVER, *bind)
    _, replay_server = processes.start_server(*REPLAY_SERVER, *bind)
    services = ("--parameter-server", parameter_server, "--replay-server", replay_server)
    rlx_server, address = processes.start_server(*RLX_SERVER, *bind, *services)
    processes.start(*LEARNER, "--config", config, *services)
    clients = [processes.start(sys.executable, CLIENT, address, ALGORITHMS[path][0], "2") for _ in range(2)]
    wait_until(lambda: status_of(parameter_server).updates > 5, "the learner learns", timeout=120)
    (first,) = inference_pids(rlx_server)
    before = status_of(parameter_server)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: len(inference_pids(rlx_server)) == 2, "the server restarts the process", timeout=60)
    wait_until(
        lambda: status_of(parameter_server).global_step > before.global_step + 1000, "training continues", timeout=120
    )
    wait_until(
        lambda: scalars(tmp_path / "metrics")["inference/version"][-1] > before.updates,
        "the metrics have the new process's version",
        timeout=120,
    )
    assert {0 < rows <= 4 for rows in scalars(tmp_path / "metrics")["inference/rows"]} == {True}
    assert rlx_server.stderr.count("ended: restarting it") == 1
    assert rlx_server.stderr.count("actors [") == 2, "no client has reconnected"
    assert all(client.returncode is None for client in clients)
    second = inference_pids(rlx_server)[1]
    assert psutil.pid_exists(second)
    assert rlx_server.stop(timeout=60) == 0, rlx_server.report()
    wait_until(lambda: not psutil.pid_exists(second), "the process ends with its server")
    assert "Traceback" not in rlx_server.stderr


def test_actions_of_checkpoints_are_those_without_the_process(processes: Processes, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", actions=50)
    checkpoints.save_random(10, seed=1)
    keys = {"path": "da3c", **KEYS}
    states = np.random.default_rng(0).normal(size=(20, 8, 3)).astype(np.float32)
    found = []
    for inference in ("worker", "shared"):
        config = tmp_path / f"{inference}.yaml"
        config.write_text(json.dumps({"algorithm": keys, "relaax-rlx-server": {"inference": inference}}))
        options = ("--bind", "127.0.0.1:0", "--checkpoint", tmp_path / "checkpoints")
        server, address = processes.start_server(*RLX_SERVER, "--config", config, *options)
        spaces: dict[str, Any] = {"observation_space": Box(shape=(3,)), "action_space": Discrete(50)}
        with (
            VectorClient(address, environments=8, mode="exploit", **spaces) as client,
            VectorClient(address, environments=3, mode="exploit", **spaces) as other,
        ):
            other.init(states[0, :3])
            actions = [client.init(states[0])]
            for step in range(1, len(states)):
                actions.append(client.step(np.zeros(8), states[step]))
                other.step(np.zeros(3), states[step, :3])
        found.append(np.array(actions))
        readers = server.stderr.count("serving parameters from checkpoint")
        assert readers == (3 if inference == "shared" else 2), "the process reads them too"
    assert len(np.unique(found[0])) > 5, "the policy depends on the states"
    np.testing.assert_array_equal(found[0], found[1])


def test_process_ends_if_its_server_is_killed(processes: Processes, tmp_path: Path) -> None:
    config = write_config(tmp_path, "apex")
    bind = ("--config", config, "--bind", "127.0.0.1:0")
    rlx_server, _ = processes.start_server(*RLX_SERVER, *bind, "--replay-server", "127.0.0.1:1")
    wait_until(lambda: len(inference_pids(rlx_server)) == 1, "the process starts")
    (pid,) = inference_pids(rlx_server)
    rlx_server.kill()
    wait_until(lambda: not psutil.pid_exists(pid), "the process ends")
