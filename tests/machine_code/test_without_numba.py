"""No process of a training imports numba, whose compiler takes 70 MB of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.processes import Processes
from support.programs import ROOT
from support.service import RELAAX

CONFIGURATIONS = {
    "da3c_gym_cartpole": (),
    "da3c_lstm_cartpole": ("--set", "rlx-server.wire-precision=bfloat16"),
    "da3c_ale_boxing": ("--envs-per-client", "1"),
    "n_step_q_gym_cartpole": ("--set", "rlx-server.bridge=hogwild", "--set", "algorithm.optimizer=rms_prop"),
    "ppo_gym_cartpole": (),
    "apex_gym_cartpole": ("--set", "algorithm.learning_starts=200"),
    "sac_gym_pendulum": ("--set", "algorithm.learning_starts=200"),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.checks("relaax", "algorithms", "setup.py")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_training_does_not_import_numba(name: str, processes: Processes, tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.mkdir()
    for library in ("numba", "llvmlite"):
        (refusing / f"{library}.py").write_text(f"raise SystemExit('{library} was imported')\n")
    options = ("--clients", "1", "--max-steps", "1500", "--no-progress", "--set", "run.target_return=null")
    command = processes.start(
        *(*RELAAX, "run", name, *options, *CONFIGURATIONS[name]),
        *("--set", "run.eval-every=null", "--set", "run.target-evaluation=null"),
        cwd=tmp_path,
        env={"PYTHONPATH": f"{refusing}:{ROOT}"},
    )
    assert command.wait(280) == 0, command.report()
    logs = {path.name: path.read_text() for path in (tmp_path / "runs" / name / "logs").iterdir()}
    assert len(logs) >= 3
    assert not [log for log, text in logs.items() if "was imported" in text or "compiled by numba" in text]
