"""The commands that record episodes and learn from them, with real servers."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.demonstrations.columns import RecordedSpaces
from relaax.demonstrations.reading import RecordedEpisodes
from relaax.rlx import Box, Discrete
from support.pages import ROOT
from support.processes import Processes, Running, project_command, wait_until
from support.recordings import arrays_of, steps_of, written

RELAAX = project_command("relaax")
CART = RecordedSpaces(Box(shape=(4,)), Discrete(2), "CartPole-v1")

pytestmark = pytest.mark.checks("relaax/demonstrations", "relaax/cli/demonstrations", "relaax/server/rlx_server")


def gymnasium_program(name: str, *options: str) -> list[str]:
    return [sys.executable, str(ROOT / "environments" / "OpenAI_Gym" / "main.py"), "ADDRESS", name, *options]


def address_of(server: Running) -> str:
    return server.wait_for_line("recording clients of ").split()[3]


def test_random_actions_are_recorded_in_all_environments(tmp_path: Path, processes: Processes) -> None:
    program = gymnasium_program("CartPole-v1", "3", "--episodes", "9", "--seed", "1")
    running = processes.start(RELAAX, "record", "demos", "--", *program, cwd=tmp_path)
    assert running.wait(120) == 0, running.report()
    recorded = RecordedEpisodes(tmp_path / "demos")
    assert recorded.episodes >= 9  # an environment continues until each has its share
    assert recorded.description.environment == "CartPole-v1"
    assert not any(episode.chosen.any() for episode in recorded)
    actions = np.concatenate([episode.actions[0] for episode in recorded])
    assert 0.3 < actions.mean() < 0.7
    assert all(len(episode) == episode.episode_return for episode in recorded)


def test_played_episodes_are_those_that_were_recorded(tmp_path: Path, processes: Processes) -> None:
    """Record episodes, load them to a second server that records, and compare: nothing changes on the way."""
    description = RecordedSpaces(Box(shape=(4,)), Discrete(3), "race", 4)
    rng = np.random.default_rng(0)
    first = [steps_of(description, length, truncated=length % 2 == 0, rng=rng) for length in (3, 1, 4, 2)]
    written(tmp_path / "first", *first, description=description)
    server = processes.start(RELAAX, "record", "second", "--bind", "localhost:0", cwd=tmp_path)
    loading = processes.start(RELAAX, "replay", "load", "first", address_of(server), cwd=tmp_path)
    assert loading.wait(120) == 0, loading.report()
    assert loading.lines == [
        "4 episodes, 10 steps, mean return " + f"{RecordedEpisodes(tmp_path / 'first').mean_return:g}"
    ]
    assert server.stop(signal.SIGINT) == 0, server.report()
    second = RecordedEpisodes(tmp_path / "second")
    assert second.description == description
    for one, other in zip(first, second, strict=True):
        for before, after in zip(arrays_of(one), arrays_of(other), strict=True):
            np.testing.assert_array_equal(before, after)
        assert other.chosen.all()
        assert (one.terminated, one.truncated) == (other.terminated, other.truncated)


def test_killed_server_keeps_the_episodes_of_its_files(tmp_path: Path, processes: Processes) -> None:
    server = processes.start(RELAAX, "record", "demos", "--bind", "localhost:0", cwd=tmp_path)
    words = gymnasium_program("CartPole-v1", "--seed", "1")
    words[words.index("ADDRESS")] = address_of(server)
    processes.start(*words, cwd=tmp_path)
    wait_until(lambda: list((tmp_path / "demos").glob("*.parquet")), "a file of episodes", 60)
    server.kill()
    recorded = RecordedEpisodes(tmp_path / "demos")
    assert recorded.episodes > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["clone", "none", "da3c_gym_cartpole"], "none: there is no such file or folder; `relaax record` makes one"),
        (["clone", "demos", "apex_gym_cartpole"], "apex learns no policy from recorded actions: it has no key"),
        (["clone", "demos", "da3c_gym_cartpol"], "did you mean 'da3c_gym_cartpole'?"),
        (["replay", "load", "demos", "."], ".: no log has the address of an RLX server"),
        (["replay", "load", "none", "localhost:1"], "none: there is no such file or folder"),
        (["record", "demos", "--config", "da3c_gym_cartpole", "--", "program"], "give one of them"),
        (
            ["clone", "demos", "da3c_gym_acrobot"],
            "the observations of Acrobot-v1 are Box(float32, [6]), but the episodes of CartPole-v1 have",
        ),
        (["replay", "load", "demos", "ended"], "ended is not active: its run has ended"),
    ],
)
def test_requests_that_cannot_work_are_refused(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "demos", steps_of(CART, 3), description=CART)
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "summary.json").write_text("{}")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())


def test_folder_that_is_a_file_is_refused_before_the_program(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "demos").write_text("")
    running = processes.start(RELAAX, "record", "demos", "--", "touch", "started", cwd=tmp_path)
    assert running.wait(60) == 2
    assert "relaax-rlx-server.record demos: " in running.stderr
    assert not (tmp_path / "started").exists()


def test_failure_of_the_program_is_reported(tmp_path: Path, processes: Processes) -> None:
    running = processes.start(RELAAX, "record", "demos", "--", "false", cwd=tmp_path)
    assert running.wait(60) == 1
    assert "the client's program ended with code 1: false" in running.stderr


@pytest.mark.parametrize("program", ["nosuchprogram", "./demos"])
def test_program_that_cannot_be_started_is_refused(tmp_path: Path, processes: Processes, program: str) -> None:
    running = processes.start(RELAAX, "record", "demos", "--", program, "ADDRESS", cwd=tmp_path)
    assert running.wait(60) == 2
    assert f"relaax record: {program} cannot be started: " in running.stderr
    assert "Traceback" not in running.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_environment_and_keeps_episodes(
    tmp_path: Path, processes: Processes, number: signal.Signals
) -> None:
    options = ("--config", "da3c_gym_cartpole", "--episodes", "1000000")
    running = processes.start(RELAAX, "record", "demos", *options, cwd=tmp_path)
    wait_until(lambda: list((tmp_path / "demos").glob("*.parquet")), "a file of episodes", 60)
    children = running.children()
    assert running.stop(number) == 0, running.report()
    assert " episodes, " in running.lines[-1]
    wait_until(lambda: not any(child.is_running() for child in children), "no process remains", 60)


def test_run_records_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--clients", "1", "--max-steps", "2000", "--target-return", "10000", "--no-progress")
    result = CliRunner().invoke(app, ["run", "da3c_gym_cartpole", "--record", "demos", *options])
    assert result.exit_code == 3, result.output
    assert RecordedEpisodes(tmp_path / "demos").episodes > 10


def test_other_spaces_than_those_of_the_training_are_refused(tmp_path: Path, processes: Processes) -> None:
    written(tmp_path / "demos", steps_of(CART, 3), description=CART)
    training = processes.start(
        *(RELAAX, "run", "da3c_gym_cartpole", "--run-dir", "run", "--clients", "1", "--no-progress"),
        *("--set", "run.name=Acrobot-v1", "--set", "run.target_return=null"),
        cwd=tmp_path,
    )
    logs = tmp_path / "run" / "logs"
    wait_until(lambda: any("actors [" in log.read_text() for log in logs.glob("rlx-server*.log")), "a worker", 120)
    loading = processes.start(RELAAX, "replay", "load", "demos", "run", cwd=tmp_path)
    assert loading.wait(60) == 1, loading.report()
    assert "connect environments with the same spaces" in loading.stderr
    training.stop(signal.SIGINT, 60)
