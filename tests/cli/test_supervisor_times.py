"""The time that the processes of a run have to end."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from relaax.cli.run.plan import make_plan, run_tokens
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.supervisor import Supervisor
from relaax.configuration import RlxServerSection
from relaax.configuration.roles import PARAMETER_SERVER, RLX_SERVER
from relaax.server.checkpoints import checkpointing
from relaax.server.parameter_server.coordination import follower
from relaax.server.rlx_server.listening import listener, status
from support.processes import Processes, wait_until


def test_rlx_server_has_enough_time_to_stop() -> None:
    assert (
        RLX_SERVER.stop_seconds({"relaax-rlx-server": RlxServerSection()}) > listener.STOP_SECONDS + status.END_SECONDS
    )


def test_parameter_server_has_time_for_its_last_checkpoint() -> None:
    assert PARAMETER_SERVER.stop_seconds({}) >= checkpointing.LAST_SECONDS + 30
    assert PARAMETER_SERVER.stop_seconds({}) >= follower.LEAVING + 30


SLOW_TO_END = """
import pathlib, signal, sys, time

def end(*_):
    time.sleep(float(sys.argv[1]))
    pathlib.Path("video").write_text("whole")
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True:
    signal.pause()
"""


def stop_run(folder: Path, seconds_needed: float, stop_timeout: float | None = None) -> tuple[Supervisor, float]:
    """Stop a run whose client needs `seconds_needed` to end; return the run, and the seconds that the stop took."""
    given = [] if stop_timeout is None else [f"run.stop_timeout={stop_timeout}"]
    directory = RunDirectory(folder / "run")
    directory.logs.mkdir(parents=True)
    plan = make_plan("da3c_gym_cartpole", [*given, "run.clients=1"])
    run = Supervisor(plan, directory, run_tokens(plan))
    (client,) = run.clients
    code = SLOW_TO_END.replace('"video"', repr(str(folder / "video")))
    client.start([sys.executable, "-c", code, str(seconds_needed)])
    wait_until(lambda: "ready" in client.log_tail(), "the client runs")
    started = time.monotonic()
    run.stop_training()
    return run, time.monotonic() - started


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision")
def test_environments_have_time_to_write_their_output(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, seconds = stop_run(tmp_path, 3.0)
    assert (tmp_path / "video").read_text() == "whole"
    assert run.clients[0].exit_code() == 0
    assert caplog.text == ""
    assert seconds < make_plan("da3c_gym_cartpole", []).run.stop_timeout, (
        "the stop does not wait after the client has ended"
    )


def test_slow_environment_is_killed_and_the_key_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, _ = stop_run(tmp_path, 3600, 0.2)
    assert run.clients[0].exit_code() == -9
    assert [record.getMessage() for record in caplog.records] == [
        "client-0 has not ended within 0.2 s and is killed; relaax-run.stop-timeout gives clients longer"
    ]


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision")
def test_second_interrupt_does_not_wait_for_environments(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "run" / "logs").mkdir(parents=True)
    run = processes.start_python(
        f"""
import sys, time
from pathlib import Path
from relaax.cli.run import experiment
from relaax.cli.run.plan import make_plan
from relaax.cli.run.run_directory import RunDirectory
from relaax.cli.run.plan import run_tokens
from relaax.cli.run.supervisor import Supervisor
experiment.KILL_AFTER_SECONDS = 0
plan = make_plan("da3c_gym_cartpole", ["run.stop_timeout=3600", "run.clients=1"])
supervisor = Supervisor(plan, RunDirectory(Path({str(tmp_path / "run")!r})), run_tokens(plan))
interrupted = experiment.SignalWatch(supervisor)
supervisor.clients[0].start([sys.executable, "-c", {SLOW_TO_END!r}, "3600"])
while "ready" not in supervisor.clients[0].log_tail():
    time.sleep(0.01)
print("client", supervisor.clients[0].pid, flush=True)
interrupted.event.wait()
print("stopping", flush=True)
supervisor.stop_training()
print(interrupted.killed, supervisor.clients[0].exit_code(), flush=True)
"""
    )
    run.wait_for_line("client ")
    run.send_signal(signal.SIGINT)
    run.wait_for_line("stopping")
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 0, run.report()
    assert run.lines[-1].startswith("True -")
