"""The commands of a suite's jobs, and the record of their results. The jobs train no agent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaax.cli import own_command
from relaax.cli.suite.jobs import JobRunner, SuitePlan, SuiteRecord, open_record
from relaax.configuration import ConfigurationError

PLAN = SuitePlan("da3c_gym_cartpole", ["CartPole-v1"], [0, 7], ["run.clients=3"], None, 100.0, 5, ["--best"])
NAME = "CartPole-v1-seed-7"


class Runner(JobRunner):
    """A runner whose jobs end at once. `ends`: status and seconds of each training."""

    def __init__(self, record: SuiteRecord, folder: Path, *ends: tuple[str, float]) -> None:
        self.messages: list[str] = []
        super().__init__(record, folder, 2, self.messages.append)
        self.commands: list[list[str]] = []
        self._ends = list(ends)
        self.on_job: Callable[[], None] = lambda: None
        self.codes: dict[str, int] = {}
        self._folder = folder
        self._trainings = 0

    def _run_process(self, name: str, *arguments: str) -> tuple[int, str]:
        self.commands.append(list(arguments))
        self.on_job()
        if arguments[0] == "run" and self._ends:
            status, seconds = self._ends.pop(0)
            self._trainings += 1
            summary = {"checkpoint": f"{id(self)}-{self._trainings}", "seconds": seconds, "status": status}
            (self._folder / name).mkdir(exist_ok=True)
            (self._folder / name / "summary.json").write_text(json.dumps(summary))
        elif arguments[0] == "eval":
            (self._folder / f"{name}.json").write_text(json.dumps({"mean": 9.0, "episodes": 5}))
        return self.codes.get(arguments[0], 0), "the end of its log"

    def option(self, number: int, name: str) -> str:
        """Return the value of an option of the command of that number."""
        return self.commands[number][self.commands[number].index(name) + 1]


def test_job_is_trained_and_then_evaluated(tmp_path: Path) -> None:
    runner = Runner(open_record(tmp_path, PLAN), tmp_path, ("max_time", 100.0))
    assert runner.run([NAME], 1) == []
    training, evaluation = runner.commands
    assert training[:2] == ["run", "da3c_gym_cartpole"]
    assert (runner.option(0, "--run-dir"), runner.option(0, "--seed")) == (str(tmp_path / NAME), "7")
    overrides = [training[i + 1] for i, word in enumerate(training) if word == "--set"]
    assert overrides == [
        "run.target_return=null",
        "run.target_evaluation=null",
        "run.clients=3",
        "run.name=CartPole-v1",
    ]
    assert (runner.option(0, "--max-time"), "--max-steps" in training) == ("100.0", False)
    assert evaluation[:2] == ["eval", str(tmp_path / NAME)]
    assert (runner.option(1, "--episodes"), runner.option(1, "--jobs"), evaluation[-1]) == ("5", "2", "--best")
    record = json.loads((tmp_path / "suite.json").read_text())["jobs"][NAME]
    assert (record["trained"], record["seconds"], record["result"]["mean"]) == (True, 100.0, 9.0)


def test_interrupted_training_resumes_with_the_remaining_time(tmp_path: Path) -> None:
    first = Runner(open_record(tmp_path, PLAN), tmp_path, ("interrupted", 30.0))
    first.on_job = first.stopping.set
    assert first.run([NAME], 1) == []
    assert len(first.commands) == 1, "an interrupted training is not evaluated"
    second = Runner(open_record(tmp_path, PLAN), tmp_path, ("interrupted", 69.5))
    second.on_job = second.stopping.set
    second.run([NAME], 1)
    assert second.option(0, "--max-time") == "70.0"
    assert f"{NAME}: training, 30 s so far" in second.messages
    third = Runner(open_record(tmp_path, PLAN), tmp_path, ("max_time", 1.0))
    third.run([NAME], 1)
    assert third.option(0, "--max-time") == "1.0", "at least one second"
    assert [command[0] for command in third.commands] == ["run", "eval"]
    assert open_record(tmp_path, PLAN).jobs[NAME].seconds == 100.5


def test_training_of_a_killed_suite_is_counted_at_the_start(tmp_path: Path) -> None:
    open_record(tmp_path, PLAN).save()
    (tmp_path / NAME).mkdir()
    summary = {"checkpoint": "a", "seconds": 40.0, "status": "interrupted"}
    (tmp_path / NAME / "summary.json").write_text(json.dumps(summary))
    runner = Runner(open_record(tmp_path, PLAN), tmp_path, ("max_time", 60.0))
    runner.run([NAME], 1)
    assert runner.option(0, "--max-time") == "60.0"
    done = summary | {"checkpoint": "b", "status": "max_time"}
    (tmp_path / "CartPole-v1-seed-0").mkdir()
    (tmp_path / "CartPole-v1-seed-0" / "summary.json").write_text(json.dumps(done))
    runner = Runner(open_record(tmp_path, PLAN), tmp_path)
    runner.run(["CartPole-v1-seed-0"], 1)
    assert [command[0] for command in runner.commands] == ["eval"], "its training had finished"


def test_max_steps_alone_sets_no_time(tmp_path: Path) -> None:
    plan = replace(PLAN, max_steps=5e4, max_seconds=None)
    runner = Runner(open_record(tmp_path, plan), tmp_path, ("max_steps", 3.0))
    runner.run([NAME], 1)
    assert (runner.option(0, "--max-steps"), "--max-time" in runner.commands[0]) == ("50000.0", False)


@pytest.mark.parametrize("fails", ["run", "eval"])
def test_failed_job_does_not_stop_the_others(tmp_path: Path, fails: str) -> None:
    ends = [("failed", 5.0), ("max_time", 100.0)] if fails == "run" else [("max_time", 100.0)] * 2
    runner = Runner(open_record(tmp_path, PLAN), tmp_path, *ends)
    runner.codes = {fails: 1}
    names = ["CartPole-v1-seed-0", NAME]

    def once() -> None:
        if runner.commands[-1][0] == fails:
            runner.codes = {fails: 1 if runner.codes.pop("first", 1) else 0, "first": 0}

    runner.on_job = once
    failures = runner.run(names, 1)
    assert failures == ["CartPole-v1-seed-0: ended with exit code 1:\nthe end of its log"]
    record = open_record(tmp_path, PLAN)
    assert record.jobs[NAME].result == {"mean": 9.0, "episodes": 5}
    assert record.jobs["CartPole-v1-seed-0"].result is None


def test_refused_configuration_ends_the_suite(tmp_path: Path) -> None:
    runner = Runner(open_record(tmp_path, PLAN), tmp_path)
    runner.codes = {"run": 2}
    with pytest.raises(ConfigurationError, match="the end of its log"):
        runner.run(["CartPole-v1-seed-0", NAME], 1)
    assert len(runner.commands) == 1, "the next one would be refused as well"


def test_concurrent_jobs_are_limited(tmp_path: Path) -> None:
    plan = replace(PLAN, seeds=list(range(6)))
    runner = Runner(open_record(tmp_path, plan), tmp_path, *[("max_time", 100.0)] * 6)
    lock, both, most = threading.Lock(), threading.Barrier(2), [0, 0]

    def on_job() -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
        both.wait(20)
        with lock:
            most[0] -= 1

    runner.on_job = on_job
    names: list[Any] = list(plan.names())
    assert runner.run(names, 2) == []
    assert most == [0, 2]


def test_long_job_reports_the_end_of_its_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_command, "PROGRESS_SECONDS", 0.0)
    messages: list[str] = []
    runner = JobRunner(open_record(tmp_path, PLAN), tmp_path, 1, messages.append)
    log = tmp_path / f"{NAME}.log"
    log.write_text("  50 s  4,000 steps  mean return 7\n")  # of an earlier process
    settings = ("--max-steps", "200", "--set", "run.target_return=null")
    code, end = runner._run_process(NAME, "run", "da3c_gym_cartpole", *settings, "--run-dir", str(tmp_path / "run"))
    assert code == 0, end
    lines = [line.strip() for line in log.read_text().splitlines()]
    assert lines[0] == "50 s  4,000 steps  mean return 7"
    assert messages
    assert {message.removeprefix(f"{NAME}: ") for message in messages} <= {*lines[1:]}
    assert "4,000 steps" not in end
