"""`relaax run` from the command line to the last process. All processes are real."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from support.processes import Processes, wait_until
from support.run import PATIENCE, SMALL, Runs
from support.service import PARAMETER_SERVER, RELAAX

pytestmark = pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")

NO_TARGET = ("--set", "run.target_return=null")
RLX_SERVER_NEVER_STARTS = """
import signal, sys
if "relaax.server.rlx_server.main" in sys.orig_argv:
    signal.pause()
"""
LONGEST_END = 180.0  # a parameter server handles SIGTERM only after it has compiled its kernels; its limit is 120 s
SUMMARY_KEYS = {
    "status",
    "env_steps",
    "frames",
    "updates",
    "seconds",
    "steps_per_second",
    "episodes",
    "mean_return_100",
    "best_mean_return_100",
    "seed",
    "checkpoint",
    "run_dir",
    "lost_steps",
    "error",
    "evaluation",
}


def manifests(directory: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((directory / "checkpoints").rglob("manifest.json"))]


def test_run_writes_summary_checkpoint_and_logs(runs: Runs, tmp_path: Path) -> None:
    run = runs.start(*SMALL, *NO_TARGET, "--max-steps", "3000", "--seed", "7", "--summary", tmp_path / "summary.json")
    # Clients first: they exist while they load their libraries, and then only for a few seconds of steps.
    wait_until(lambda: len(run.of("client")) == 2, "both clients run", PATIENCE)
    wait_until(lambda: run.of("worker") or run.running.returncode is not None, "workers are seen", PATIENCE)
    assert run.running.wait(150) == 0, run.running.report()
    run.expect_nothing_left()
    summary = run.summary
    assert summary.keys() == SUMMARY_KEYS
    assert summary == json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "max_steps"
    assert (summary["lost_steps"], summary["error"]) == (0, None)
    assert 3000 <= summary["env_steps"] == summary["frames"] < 100_000
    assert summary["updates"] == pytest.approx(summary["env_steps"] / 10, rel=0.25)  # 2 environments, 5 steps
    assert summary["episodes"] > 10
    assert 8 < summary["mean_return_100"] < 500
    assert summary["seconds"] > 0
    assert summary["steps_per_second"] > 10
    assert summary["seed"] == 7
    assert summary["run_dir"] == str(run.directory)
    assert Path(summary["checkpoint"]).is_file()
    assert manifests(run.directory)[-1]["global_step"] == summary["env_steps"]
    assert list((run.directory / "metrics").glob("events.out.tfevents.*"))
    assert {path.name for path in (run.directory / "logs").iterdir()} == {
        "parameter-server.log",
        "run.log",
        "rlx-server.log",
        "client-0.log",
        "client-1.log",
    }
    assert run.running.lines == [], "--no-progress prints no lines"
    for log in (run.directory / "logs").iterdir():
        assert "Traceback" not in log.read_text(), log


@pytest.mark.slow
def test_interrupted_run_saves_and_is_resumed(runs: Runs) -> None:
    run = runs.start(*SMALL)
    run.wait_for_steps(500)
    wait_until(lambda: len(run.everything) >= 7, "the run, two servers, two clients and two workers are alive")
    started = time.monotonic()
    run.running.interrupt_group()
    assert run.running.wait(10) == 130, run.running.report()
    run.expect_nothing_left(max(0.1, 10 - (time.monotonic() - started)))
    summary = run.summary
    assert summary["status"] == "interrupted"
    saved = manifests(run.directory)[-1]["global_step"]
    assert saved == summary["env_steps"] > 500

    again = runs.start(*SMALL)
    status = again.wait_for(lambda status: True, "its parameter server answers")
    assert status.global_step >= saved
    assert status.episodes >= summary["episodes"]
    again.wait_for_steps(int(saved) + 100)
    assert "Traceback" not in again.log("rlx-server")
    again.running.interrupt_group()
    assert again.running.wait(30) == 130
    again.expect_nothing_left()
    assert again.summary["env_steps"] > saved


@pytest.mark.slow
def test_run_survives_loss_of_each_shard_and_resumes_with_one(runs: Runs) -> None:
    run = runs.start(*SMALL, "--set", "relaax-parameter-server.shards=2", "--set", "run.checkpoint_interval=1")
    run.wait_for_steps(200)
    # The shard that was started first is shard 0. A terminated shard is restarted like a killed one.
    for number, how in ((1, signal.SIGKILL), (1, signal.SIGTERM), (0, signal.SIGKILL)):
        shards = sorted(run.of("parameter-server"), key=lambda process: process.create_time())
        assert len(shards) == 2
        before = run.wait_for(lambda status: status.checkpoint_global_step > 0, "there is a checkpoint")
        shards[number].send_signal(how)
        run.wait_for(
            lambda status, since=before: status.incarnation > since.incarnation, "a new incarnation has started"
        )
        run.wait_for_steps(before.global_step + 200)
    run.running.interrupt_group()
    assert run.running.wait(30) == 130, run.running.report()
    run.expect_nothing_left()
    last, steps = manifests(run.directory)[-1], run.summary["env_steps"]
    assert last["global_step"] == steps
    assert len(last["shards"]) == 2  # type: ignore[arg-type]
    assert (run.directory / "logs" / "parameter-server-1.log").exists()

    again = runs.start(*SMALL, *NO_TARGET, "--max-steps", str(steps + 500))
    assert again.running.wait(150) == 0, again.running.report()
    assert again.summary["env_steps"] >= steps + 500


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_reached_and_missed_targets_have_their_exit_codes(runs: Runs, processes: Processes, tmp_path: Path) -> None:
    reached = runs.start(*SMALL, "--target-return", "9")
    assert reached.running.wait(120) == 0, reached.running.report()
    assert reached.summary["status"] == "target_reached"
    assert reached.summary["mean_return_100"] >= 9
    assert reached.summary["episodes"] >= 100
    missed = runs.start(*SMALL, "--target-return", "10000", "--max-steps", "1500")
    assert missed.running.wait(120) == 3, missed.running.report()
    steps = missed.summary["env_steps"]
    assert missed.summary["status"] == "max_steps"
    assert steps < 20_000, "the finished run was not resumed"
    (aside,) = missed.directory.parent.glob("run.*")
    assert json.loads((aside / "summary.json").read_text())["status"] == "target_reached"
    config, elsewhere = aside / "configuration.yaml", tmp_path / "elsewhere"
    elsewhere.mkdir()
    server = processes.start(*PARAMETER_SERVER, "--config", config, cwd=elsewhere)
    server.wait_for_address()
    assert server.stop() == 0
    assert f"resuming from {aside}/checkpoints/" in server.stderr, "it serves the checkpoints of its own run only"
    fresh = runs.start(*SMALL, *NO_TARGET, "--max-steps", "1000", "--fresh")
    assert fresh.running.wait(120) == 0, fresh.running.report()
    (first, *_) = sorted((fresh.directory / "checkpoints").glob("[0-9]*"))
    assert first.name.startswith("00000001-"), "it did not resume"
    assert len(list(missed.directory.parent.glob("run.*"))) == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_run_ends_at_max_time_and_is_resumed(runs: Runs) -> None:
    run = runs.start(*SMALL, "--target-return", "10000", "--max-time", "0.02m")
    assert run.running.wait(150) == 3, run.running.report()
    run.expect_nothing_left()
    before = run.summary
    assert before["status"] == "max_time"
    assert before["seconds"] >= 1.2
    assert manifests(run.directory)[-1]["global_step"] == before["env_steps"] > 0
    again = runs.start(*SMALL, *NO_TARGET, "--max-time", "1")
    assert again.running.wait(150) == 0, again.running.report()
    assert again.summary["status"] == "max_time"
    assert again.summary["env_steps"] > before["env_steps"], "it was resumed, and trained for one more second"
    assert again.summary["seconds"] < before["seconds"] + 60
    assert not list(run.directory.parent.glob("run.*"))


@pytest.mark.slow
def test_refused_resume_leaves_the_run_as_it_was(runs: Runs) -> None:
    run = runs.start(*SMALL, *NO_TARGET, "--max-time", "1")
    assert run.running.wait(150) == 0, run.running.report()
    files = [run.directory / name for name in ("configuration.yaml", "summary.json")]
    before = [path.read_bytes() for path in files]
    again = runs.start(*SMALL, *NO_TARGET, "--set", "algorithm.rewards_gamma=0.5")
    assert again.running.wait(150) == 2
    assert "keys that are fixed when a run is resumed" in again.running.stderr
    assert [path.read_bytes() for path in files] == before


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_run_ends_at_max_global_step(runs: Runs) -> None:
    run = runs.start(*SMALL, *NO_TARGET, "--set", "algorithm.max_global_step=2000")
    assert run.running.wait(120) == 0, run.running.report()
    assert run.summary["status"] == "max_steps"
    assert manifests(run.directory)[-1]["global_step"] == run.summary["env_steps"] >= 2000


@pytest.mark.slow
def test_directory_in_use_is_refused_by_a_second_run(runs: Runs) -> None:
    run = runs.start(*SMALL)
    run.wait_for_steps(0)
    second = runs.start(*SMALL)
    assert second.running.wait(60) == 2
    assert "in use by another run" in second.running.stderr
    assert run.running.returncode is None
    run.wait_for_steps(run.status.global_step + 100)


@pytest.mark.slow
def test_killed_run_leaves_no_process(runs: Runs) -> None:
    run = runs.start(*SMALL)
    run.wait_for_steps(200)
    wait_until(lambda: len(run.everything) >= 7, "the run, two servers, two clients and two workers are alive")
    run.running.kill()
    run.expect_nothing_left(60)
    assert manifests(run.directory), "the parameter server was terminated, and saved"


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP))],
)
def test_interrupt_during_the_start_ends_the_run(
    runs: Runs, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    (tmp_path / "sitecustomize.py").write_text(RLX_SERVER_NEVER_STARTS)
    run = runs.start(*SMALL)
    wait_until(lambda: run.of("rlx-server"), "the RLX server was started", PATIENCE)
    run.running.send_signal(number)
    assert run.running.wait(LONGEST_END) == 130, run.running.report()
    run.expect_nothing_left()
    assert run.summary["status"] == "interrupted"


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
@pytest.mark.parametrize("reader", ["| head -1", "2>&1 | head -1"])
def test_closed_output_does_not_end_the_run(processes: Processes, tmp_path: Path, reader: str) -> None:
    script = f'"$@" {reader}; exit "${{PIPESTATUS[0]}}"'
    options = ("--clients", "1", *NO_TARGET, "--max-steps", "500", "--run-dir", tmp_path / "run")
    command = processes.start("bash", "-c", script, "bash", *RELAAX, "run", "da3c_gym_cartpole", *options)
    assert command.wait(150) == 0, command.report()
    assert command.lines == ["da3c_gym_cartpole: CartPole-v1 by da3c"]
    assert command.stderr == ""
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "max_steps"


def test_refusal_without_output_keeps_its_exit_code(processes: Processes) -> None:
    command = processes.start("bash", "-c", '"$@" 2>/dev/full', "bash", *RELAAX, "run", "missing/file.yaml")
    assert command.wait(60) == 2


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_run_under_nohup_survives_the_hangup(processes: Processes, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    options = ("--clients", "1", *NO_TARGET, "--max-time", "3", "--run-dir", directory)
    command = processes.start("nohup", *RELAAX, "run", "da3c_gym_cartpole", *options)
    command.wait_for_line("environments connect", PATIENCE)
    command.send_signal(signal.SIGHUP)
    assert command.wait(150) == 0, command.report()
    assert json.loads((directory / "summary.json").read_text())["status"] == "max_time"


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_environments_that_fail_repeatedly_end_the_run(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('no simulator answers')")
    run = runs.start(*SMALL, "--set", f"run.environment={tmp_path / 'mine.py'}")
    assert run.running.wait(150) == 1, run.running.report()
    assert "no simulator answers" in run.running.stderr
    run.expect_nothing_left()


def test_misspelt_environment_moves_no_run_aside(runs: Runs, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "00000001-9-f1"
    checkpoint.mkdir(parents=True)
    (tmp_path / "run" / "configuration.yaml").write_text("an earlier run")
    run = runs.start(*SMALL, "--fresh", "--set", "run.name=CartPoel-v1", "--summary", tmp_path / "summary.json")
    assert run.running.wait(60) == 2, run.running.report()
    assert list(tmp_path.glob("run*")) == [tmp_path / "run"]
    assert not (tmp_path / "summary.json").exists()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoints", "configuration.yaml"]
    assert (tmp_path / "run" / "configuration.yaml").read_text() == "an earlier run"


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_environments_that_finish_end_the_run(runs: Runs) -> None:
    one_each = ("--envs-per-client", "1")  # two environments may exceed the limit by one step
    run = runs.start(*SMALL, *one_each, *NO_TARGET, "--set", "run.arguments=['--steps', '400']")
    assert run.running.wait(150) == 0, run.running.report()
    assert 600 <= run.summary["env_steps"] <= 800
    run.expect_nothing_left()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["da3c_gym_cartpol"], ["da3c_gym_cartpol", "da3c_gym_cartpole"]),
        (["missing/file.yaml"], ["missing/file.yaml"]),
        (["da3c_gym_cartpole", "--set", "run.client=3"], ["'client'", "'clients'"]),
        (["da3c_gym_cartpole", "--clients", "0"], ["clients", "0"]),
        (["da3c_gym_cartpole", "--max-steps", "1.5"], ["max_steps", "1.5"]),
        (["da3c_gym_cartpole", "--max-time", "soon"], ["max_time", "'soon'", "90s, 15m, 2h, 1h30m"]),
        (["da3c_gym_cartpole", "--set", "run.name=CartPoel-v1"], ["'CartPoel-v1'; the nearest is 'CartPole-v1'"]),
    ],
)
def test_invalid_run_is_refused_in_one_sentence(
    processes: Processes, tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    command = processes.start(*RELAAX, "run", *arguments, "--run-dir", tmp_path / "run")
    assert command.wait(60) == 2, command.report()
    assert "Traceback" not in command.stderr
    (sentence,) = [line for line in command.stderr.splitlines() if line.startswith("relaax run: ")]
    for words in expected:
        assert words in sentence
    assert not (tmp_path / "run").exists(), "the run was not started"


def test_unknown_key_of_the_algorithm_is_refused(runs: Runs) -> None:
    run = runs.start(*SMALL, "--set", "algorithm.entropy_bta=0.1")
    assert run.running.wait(150) == 2, run.running.report()
    assert "'entropy_bta'" in run.running.stderr
    assert "'entropy_beta'" in run.running.stderr
    assert "Traceback" not in run.running.stderr
    run.expect_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["relaax-parameter-server", "relaax-rlx-server"])
def test_missing_device_ends_the_run_with_the_server_error(runs: Runs, server: str) -> None:
    run = runs.start(*SMALL, "--set", f"{server}.device=gpu:99")
    assert run.running.wait(150) == 2, run.running.report()
    assert f"{server}.device: gpu:99 was asked for, but TensorFlow finds " in run.running.stderr
    assert "Traceback" not in run.running.stderr
    run.expect_nothing_left()


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_wrong_action_size_ends_the_run_with_one_sentence(runs: Runs) -> None:
    run = runs.start(*SMALL, "--set", "algorithm.action_size=5")
    assert run.running.wait(150) == 2, run.running.report()
    sentence = "algorithm.action_size is 5, the client's action space is Discrete(2)"
    assert run.running.stderr.count(sentence) == 1
    assert "was restarted" not in run.running.stderr
    run.expect_nothing_left()


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/supervision", "relaax/server")
def test_unsupported_space_ends_the_run_with_one_sentence(runs: Runs) -> None:
    run = runs.start(*SMALL, "--set", "run.name=Pendulum-v1", config="async_q_gym_cartpole")
    assert run.running.wait(150) == 2, run.running.report()
    assert (
        "async_q cannot handle the action space Box(float32, [1], -2..2): it handles one Discrete" in run.running.stderr
    )
    assert "was restarted" not in run.running.stderr
    assert "Traceback" not in run.running.stderr
    run.expect_nothing_left()


@pytest.mark.parametrize("arguments", [[], ["run"], ["version"]])
def test_every_command_has_help(processes: Processes, arguments: list[str]) -> None:
    command = processes.start(*RELAAX, *arguments, "--help")
    assert command.wait(60) == 0
    assert any(line.startswith("Usage: relaax") for line in command.lines)


def test_version_is_printed(processes: Processes) -> None:
    from relaax import __version__

    command = processes.start(*RELAAX, "version")
    assert command.wait(60) == 0
    assert command.lines == [__version__]


def test_clients_file_without_a_token_is_refused(processes: Processes, tmp_path: Path) -> None:
    clients, directory = tmp_path / "clients.yaml", tmp_path / "run"
    clients.write_text("{}")
    named = ("--set", f"relaax-rlx-server.clients_file={clients}")
    command = processes.start(*RELAAX, "run", "da3c_gym_cartpole", "--run-dir", directory, *named)
    assert command.wait(60) == 2, command.report()
    assert "set token_file as well" in command.stderr
    assert not directory.exists()
