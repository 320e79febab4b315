"""Runs whose environments end, and evaluations of endless episodes. The programs are real."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rich.progress

from relaax.cli.run.experiment import _await_evaluation, _exit_code
from relaax.cli.run.plan import make_plan
from relaax.evaluation import report as progress
from relaax.evaluation.report import EvaluationProgress
from support.processes import Processes
from support.run import PATIENCE, SMALL, Runs
from support.service import RELAAX

ODD = """
import sys
import gymnasium
import numpy as np

class Match(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    length, lives = 20, None
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if self.lives is not None:
            self.lives -= 1
            if self.lives < 0:
                sys.exit()
        return self.seen(), {}
    def seen(self):
        self.sign = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.sign]
    def step(self, action):
        reward = float(action == self.sign)
        self.t += 1
        return self.seen(), reward, False, self.length is not None and self.t >= self.length, {}

class Endless(Match):
    length = None

class Quits(Match):
    lives = 30

for made in (Match, Endless, Quits):
    gymnasium.register(id=f"{made.__name__}-v0", entry_point=made)
"""
CONFIG = """
relaax-run: {environment: OpenAI_Gym, name: "odd:Match-v0", max-steps: 60000}
algorithm: {path: da3c, max_global_step: 1e6}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    folder = tmp_path / "configuration"
    folder.mkdir()
    (folder / "odd.py").write_text(ODD, encoding="utf-8")
    (folder / "one.yaml").write_text(CONFIG, encoding="utf-8")
    return folder / "one.yaml"


def test_interrupted_run_does_not_wait_for_its_evaluation(config: Path) -> None:
    interrupted = SimpleNamespace(event=threading.Event())
    interrupted.event.set()
    steps: list[str] = []
    view = SimpleNamespace(step=steps.append)
    evaluated = SimpleNamespace(latest=None, is_running=lambda: True)
    plan: Any = make_plan(str(config), [])
    await_evaluation: Any = _await_evaluation
    assert await_evaluation(plan, "interrupted", interrupted, view, evaluated) == "interrupted"
    assert steps == [], "no step is shown while the programs are stopped"


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/client", "relaax/supervision", "environments/OpenAI_Gym")
def test_run_ends_with_status_environment_exited(runs: Runs, config: Path) -> None:
    run = runs.start(*SMALL, "--set", "run.name=odd:Quits-v0", config=config)
    assert run.running.wait(PATIENCE) == 1, run.running.report()
    run.expect_nothing_left()
    assert run.summary["status"] == "environment_exited"
    assert run.summary["env_steps"] < 60_000
    assert run.summary["lost_steps"] == 0
    assert "the environment ended its program" in run.summary["error"]
    assert "(Quits-v0) ended the program by sys.exit()" in run.summary["error"]
    assert all(line.strip() in run.running.stderr for line in run.summary["error"].splitlines())
    assert "\\n" not in run.running.stderr


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/client", "relaax/supervision")
def test_run_ends_with_status_environments_done(runs: Runs, config: Path) -> None:
    run = runs.start(*SMALL, "--set", "run.arguments=[--episodes, 4]", config=config)
    assert run.running.wait(PATIENCE) == 3, run.running.report()
    assert (run.summary["status"], run.summary["error"]) == ("environments_done", None)
    assert run.summary["env_steps"] < 1000


@pytest.mark.parametrize(
    ("status", "overrides", "code"),
    [
        ("environments_done", ["run.max_steps=null"], 0),
        ("environments_done", [], 3),
        ("environments_done", ["run.max_steps=null", "run.max_time=9"], 3),
        ("environments_done", ["run.max_steps=null", "run.target_return=9"], 3),
        ("environment_exited", ["run.max_steps=null"], 1),
        ("max_steps", [], 0),
        ("max_steps", ["run.target_return=9"], 3),
        ("max_time", ["run.max_time=9"], 0),
    ],
)
def test_exit_code_is_0_only_if_the_limit_is_reached(
    config: Path, status: str, overrides: list[str], code: int
) -> None:
    assert _exit_code(make_plan(str(config), overrides), status) == code


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/evaluation", "relaax/supervision", "relaax/cli/evaluate.py")
def test_evaluations_find_the_modules_of_the_run(processes: Processes, config: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = ("--eval-every", "300", "--eval-episodes", "2", "--target-evaluation", "0", "--no-progress")
    run = processes.start(*RELAAX, "run", "../configuration/one.yaml", *options, cwd=elsewhere)
    assert run.wait(PATIENCE + 60) == 0, run.report()
    summary = json.loads((elsewhere / "runs" / "one" / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("target_reached", None)
    assert summary["evaluation"] >= 0
    for name in ("../configuration/one.yaml", "runs/one"):
        done = processes.start(*RELAAX, "eval", name, "--episodes", "2", cwd=elsewhere)
        assert done.wait(PATIENCE) == 0, done.report()


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/evaluation", "relaax/supervision")
def test_run_without_a_finished_evaluation_has_failed(runs: Runs, config: Path) -> None:
    program = config.with_name("unplayable.py")
    program.write_text(
        "import sys\n"
        "if sys.argv[1] == 'local':\n"
        "    sys.exit(7)\n"
        "from relaax.client import command, run\n"
        "described = command.parser('unplayable', 'Runs.', 'an id')\n"
        "command.execute(described, lambda given: run(given.name, **command.settings(given)))\n",
        encoding="utf-8",
    )
    options = ("--set", "run.environment=unplayable.py", "--set", "run.name=CartPole-v1")
    run = runs.start(*SMALL, "--eval-every", "200", "--max-time", "20", *options, config=config)
    assert run.running.wait(PATIENCE + 60) == 1, run.running.report()
    assert (run.summary["status"], run.summary["evaluation"]) == ("max_time", None)
    assert run.summary["error"].startswith("no evaluation has a result, though ")
    assert " began: exit code 1 for checkpoint " in run.summary["error"]


def test_endless_episode_is_cut_off_and_counted(processes: Processes, config: Path) -> None:
    result = config.with_name("result.json")
    limits = ("--episodes", "3", "--max-episode-steps", "50", "--jobs", "1", "--json", result)
    done = processes.start(*RELAAX, "eval", config, "--random", "--set", "run.name=odd:Endless-v0", *limits)
    assert done.wait(PATIENCE) == 0, done.report()
    found: dict[str, Any] = json.loads(result.read_text())
    assert (found["max_episode_steps"], found["cut_off"]) == (50, 3)
    assert found["lengths"] == [50] * 3
    assert all(0 <= value <= 50 for value in found["returns"])


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/run", "relaax/client", "relaax/supervision")
def test_episodes_within_the_limit_are_whole(processes: Processes, config: Path) -> None:
    result = config.with_name("result.json")
    limits = ("--episodes", "2", "--max-episode-steps", "20", "--jobs", "1", "--json", result)
    done = processes.start(*RELAAX, "eval", config, "--random", *limits)
    assert done.wait(PATIENCE) == 0, done.report()
    found: dict[str, Any] = json.loads(result.read_text())
    assert (found["lengths"], found["cut_off"]) == ([20, 20], 0)


def test_evaluation_without_finished_episodes_logs_its_step(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with rich.progress.Progress(disable=True) as bar, caplog.at_level(logging.WARNING):
        shown = EvaluationProgress(bar, 5)
        for second in range(0, 100):
            now[0] = float(second)
            shown.show_step(0, 10 * second)
        shown.add_episode(1.0)
        shown.show_step(1, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "0 of 5 episodes have ended; episode 1 at step 300",
        "0 of 5 episodes have ended; episode 1 at step 900",
    ]
