"""Runs with replay servers: actors write experience, and learners or workers learn from it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from relaax.bundled import bundled_folder
from relaax.checkpoint import CheckpointManager, LocalStore
from support import replay_algorithm
from support.processes import Processes, wait_until
from support.scrape import health
from support.service import LEARNER, PARAMETER_SERVER, RELAAX, REPLAY_SERVER, RLX_SERVER, status_of

pytestmark = pytest.mark.checks("relaax/server", "relaax/replay", "relaax/cli/run", "relaax/supervision")

CLIENT = str(bundled_folder("environments") / "OpenAI_Gym" / "main.py")
STEPS = 2_000


def write_config(folder: Path, shards: int, learners: int, **algorithm: object) -> Path:
    document = {
        "relaax-replay-server": {"shards": shards},
        "relaax-learner": {"learners": learners},
        "relaax-run": {"environment": "OpenAI_Gym", "name": "CartPole-v1", "clients": 2, "envs_per_client": 2},
        "algorithm": {"path": str(Path(replay_algorithm.__file__)), "max_global_step": STEPS, **algorithm},
    }
    file = folder / "replay.yaml"
    file.write_text(json.dumps(document))  # JSON is YAML
    return file


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("learners", "bundle"), [(2, False), (0, True)])
def test_run_learns_from_replay_memory(processes: Processes, tmp_path: Path, learners: int, bundle: bool) -> None:
    config = write_config(tmp_path, 2, learners, bundle=bundle)
    run = processes.start(*RELAAX, "run", config, "--run-dir", tmp_path / "run", "--no-progress", cwd=tmp_path)
    assert run.wait(240) == 0, run.report()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "max_steps"
    assert summary["env_steps"] >= STEPS
    assert summary["updates"] > 10
    assert "restarting" not in run.stderr
    manager = CheckpointManager(LocalStore(tmp_path / "run" / "checkpoints"))
    checkpoint = manager.load(manager.published()[0])
    (part,) = checkpoint.parts.values()
    assert part["parameters"].min() == part["parameters"].max() < 0, "gradients of ones"
    for number in range(learners):
        log = (tmp_path / "run" / "logs" / (f"learner-{number}.log" if number else "learner.log")).read_text()
        assert f"learner {number} starts to learn at global step" in log
        assert "Traceback" not in log


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resumed_run_restores_its_replay_memory_unless_fresh(processes: Processes, tmp_path: Path) -> None:
    config, directory = write_config(tmp_path, 1, 1, max_global_step=10**9), tmp_path / "run"
    keep = ("--run-dir", directory, "--no-progress", "--set", "replay-server.checkpoint-dir=kept")

    def log_of(steps: int, *more: str) -> str:
        run = processes.start(*RELAAX, "run", config, *keep, "--max-steps", str(steps), *more, cwd=tmp_path)
        assert run.wait(240) == 0, run.report()
        return (directory / "logs" / "replay-server.log").read_text()

    first = log_of(STEPS)
    assert "checkpoint" in first and "restored " not in first
    assert [path.name for path in (directory / "replay").iterdir()] == ["shard-0-of-1"]
    second = log_of(2 * STEPS)
    items = int(second.partition("restored ")[2].split()[0])
    assert items > 500
    assert "Traceback" not in second
    assert "restored " not in log_of(STEPS // 2, "--fresh")
    assert not (tmp_path / "kept").exists(), "all files are in the run directory"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_run_restarts_a_terminated_learner(processes: Processes, tmp_path: Path) -> None:
    config = write_config(tmp_path, 1, 1, max_global_step=10**9)
    run = processes.start(*RELAAX, "run", config, "--run-dir", tmp_path / "run", "--no-progress", cwd=tmp_path)
    log = tmp_path / "run" / "logs" / "learner.log"
    start_line = "learner 0 starts to learn at global step"
    wait_until(lambda: log.exists() and start_line in log.read_text(), "the learner learns", timeout=120)
    module = LEARNER[-1]
    (learner,) = (
        process
        for process in psutil.Process(run.pid).children(recursive=True)
        if module in process.cmdline() and "end_with_parent.py" not in " ".join(process.cmdline())
    )
    learner.terminate()
    wait_until(lambda: log.read_text().count(start_line) == 2, "the restarted learner learns", timeout=120)
    assert run.stop(signal.SIGINT, timeout=120) == 130, run.report()
    assert run.stderr.count("learner has ended (0); restarting") == 1
    assert run.stderr.count("restarting") == 1


@pytest.mark.timeout(300)
def test_training_continues_after_a_learner_is_killed(processes: Processes, tmp_path: Path) -> None:
    config = write_config(tmp_path, 1, 1, max_global_step=10**9)
    bind = ("--config", config, "--bind", "127.0.0.1:0")
    _, parameter_server = processes.start_server(*PARAMETER_SERVER, *bind)
    _, replay_server = processes.start_server(*REPLAY_SERVER, *bind)
    services = ("--parameter-server", parameter_server, "--replay-server", replay_server)
    _, address = processes.start_server(*RLX_SERVER, *bind, *services)
    learner = (*LEARNER, "--config", config, *services, "--status-bind", "127.0.0.1:0")
    first = processes.start(*learner)
    processes.start(sys.executable, CLIENT, address, "CartPole-v1", "2")
    wait_until(lambda: status_of(parameter_server).updates > 5, "the learner learns", timeout=120)
    first.kill()
    before = status_of(parameter_server)
    second = processes.start(*learner)
    wait_until(lambda: status_of(parameter_server).updates > before.updates + 5, "the new learner learns", timeout=120)
    url = second.wait_for_line(" status at ").rsplit(" ", 1)[-1]
    _, learner_health = health(url)
    assert learner_health["phase"] == "learning"
    assert learner_health["updates"] > 0
    after = status_of(parameter_server)
    assert after.global_step > before.global_step
    assert (after.workers, after.learners) == (1, 1)
