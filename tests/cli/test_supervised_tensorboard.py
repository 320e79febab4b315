"""TensorBoard in a run: started if enabled, and dropped if it fails repeatedly."""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path

import pytest

from relaax.cli.run.plan import make_plan
from relaax.cli.run.supervisor import Supervisor
from relaax.supervision.process import MAX_FAILURES
from support.processes import wait_until
from support.supervised import supervised


def end_board(running: Supervisor) -> None:
    (board,) = running._processes["tensorboard"]
    assert board.pid is not None
    os.kill(board.pid, signal.SIGKILL)
    wait_until(lambda: board.exit_code() is not None, "it has ended")
    running.watch()


@pytest.mark.slow
@pytest.mark.checks("relaax/server/tensorboard", "relaax/supervision", "relaax/cli/run")
def test_run_continues_if_tensorboard_fails_repeatedly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = make_plan("da3c_gym_cartpole", ["tensorboard.enabled=true"])
    with supervised(plan, tmp_path / "run") as running:
        url = running.tensorboard_url
        assert url is not None
        with urllib.request.urlopen(f"{url}data/environment", timeout=60) as answer:
            assert str(tmp_path / "run" / "metrics") in answer.read().decode()
        end_board(running)
        assert running.tensorboard_url == url, "the address is the same after a restart"
        for _ in range(MAX_FAILURES):
            if running.tensorboard_url is not None:
                end_board(running)
        assert running.tensorboard_url is None
        assert "training continues without TensorBoard: tensorboard fails repeatedly" in caplog.text
        assert running.parameter_server.exit_code() is None


def test_tensorboard_is_disabled_by_default() -> None:
    plan = make_plan("da3c_gym_cartpole", [])
    assert not plan.configuration.tensorboard.enabled
