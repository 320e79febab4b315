"""`relaax tune`: a search by Optuna, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relaax.cli.run.plan import make_plan
from relaax.cli.tune.command import write_best
from relaax.cli.tune.space import current_values, space_of
from relaax.configuration.tune_section import CHOICES, LOG, SearchRange
from support.programs import completed

RELAAX = str(Path(sys.executable).with_name("relaax"))
CARTPOLE = "da3c_gym_cartpole"


def configuration_with(folder: Path, section: str) -> str:
    """Write CartPole's configuration with a section `tune`; return its path."""
    text = (Path(__file__).parents[2] / "config" / f"{CARTPOLE}.yaml").read_text("utf-8")
    path = folder / "mine.yaml"
    path.write_text(f"{text.replace('../algorithms/da3c', 'da3c')}\ntune:\n  {section}\n", "utf-8")
    return str(path)


def test_section_replaces_the_default_space(tmp_path: Path) -> None:
    default = space_of(make_plan(CARTPOLE, []).configuration)
    assert default["algorithm.initial_learning_rate"] == SearchRange(LOG, (1e-5, 1e-2))
    assert "algorithm.n_step" not in default
    path = configuration_with(tmp_path, "algorithm.episode_len: {choices: [5, 20]}")
    assert space_of(make_plan(path, []).configuration) == {"algorithm.episode_len": SearchRange(CHOICES, (5, 20))}


def test_first_trial_has_the_values_of_the_configuration() -> None:
    configuration = make_plan(CARTPOLE, ["algorithm.initial_learning_rate=1e-5"]).configuration
    space = {
        "algorithm.initial_learning_rate": SearchRange(LOG, (1e-5, 1e-2)),
        "algorithm.RMSProp.decay": SearchRange(CHOICES, (0.9, 0.99)),
        "relaax-run.envs-per-client": SearchRange(CHOICES, (1, 2)),  # the configuration has another value
    }
    assert current_values(configuration, space) == {
        "algorithm.initial_learning_rate": 1e-5,
        "algorithm.RMSProp.decay": 0.99,
    }


def test_best_configuration_has_only_the_keys_that_were_set(tmp_path: Path) -> None:
    path = configuration_with(tmp_path, "algorithm.episode_len: {choices: [5, 20]}")
    write_best(tmp_path / "best.yaml", make_plan(path, ["algorithm.episode_len=20", "algorithm.RMSProp.decay=0.9"]))
    best = make_plan(str(tmp_path / "best.yaml"), []).configuration
    assert best.algorithm["episode_len"] == 20
    assert best.algorithm["RMSProp"]["decay"] == 0.9
    assert best.algorithm["path"] == "da3c"
    assert "seed" not in best.algorithm
    assert "tune:" not in (tmp_path / "best.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ("algorithm.gae_lamda: {uniform: [0.7, 1]}", "algorithm: unknown key 'gae_lamda'; did you mean 'gae_lambda'?"),
        ("algorithm.gae_lambda: {uniform: [0.7, 2]}", "section tune: algorithm.gae_lambda"),
        ("algorithm.gae_lambda: {uniform: [1, 0.7]}", "the lowest value, 1, is not below the highest, 0.7"),
        ("algorithm.gae_lambda: {log: [0, 1]}", "a logarithmic range begins above 0, not at 0"),
        ("algorithm.episode_len: {integers: [5, 7.5]}", "integers needs whole numbers, not 5 and 7.5"),
        ("algorithm.gae_lambda: 0.7", "{uniform: [0.7, 1]}, {integers: [5, 40]} or {choices: [1, 3, 5]} is expected"),
        ("algorithm.gae_lambda: {uniform: [a, 1]}", "uniform needs the lowest and the highest value"),
    ],
)
def test_invalid_space_is_refused_before_any_trial(tmp_path: Path, section: str, sentence: str) -> None:
    done = completed([RELAAX, "tune", configuration_with(tmp_path, section)], dict(os.environ), tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert not (tmp_path / "runs").exists()


def trials(folder: Path) -> list[Any]:
    """Return the trials of a study, by Optuna."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(folder / "study.log")))
    return optuna.load_study(study_name=folder.name, storage=storage).trials


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/tune", "relaax/cli/own_command.py", "relaax/cli/run", "relaax/configuration")
@pytest.mark.timeout(900)
def test_killed_study_is_resumed_without_a_lost_trial(tmp_path: Path, short: bool) -> None:
    count = 3 if short else 5
    arguments = [RELAAX, "tune", CARTPOLE, "--dir", "study", "--jobs", "1", "--trials", str(count)]
    arguments += ["--max-steps", "6000"]
    arguments += ["--set", "algorithm.initial_learning_rate=1e-5", "--set", "run.target_return=null"]
    arguments += ["--set", "run.clients=2", "--set", "run.checkpoint_interval=1"]
    with (tmp_path / "first.log").open("w") as log:
        first = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True)
    assert first.stdout is not None
    output = ""
    while "trial 1: algorithm" not in output:
        line = first.stdout.readline()
        assert line, f"it ended early: {output}"
        output += line
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert f"{count} trials of 6,000 steps, 0 begun before" in output
    assert "initial_learning_rate 1e-05" in output  # trial 0 begins with the given value
    before = trials(tmp_path / "study")
    assert [trial.state.name for trial in before] == ["COMPLETE", "RUNNING"]

    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = trials(tmp_path / "study")
    assert [trial.number for trial in after] == list(range(count))
    assert all(trial.state.is_finished() for trial in after)
    drawn = [tuple(trial.params.values()) for trial in after]
    assert len(set(drawn)) == count, "a study that continues draws other values"
    shorter = [*arguments[:-9], "5000", *arguments[-8:]]
    refused = subprocess.run(shorter, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "study holds trials of 6,000 steps, not of 5,000: give --max-steps 6000" in refused.stderr
    assert after[0].value == before[0].value
    assert after[1].params == before[1].params
    assert json.loads((tmp_path / "study" / "trial-1" / "summary.json").read_text())["env_steps"] >= 6000
    assert make_plan(str(tmp_path / "study" / "best.yaml"), []).run.name == "CartPole-v1"


@pytest.mark.slow
@pytest.mark.checks("relaax/cli/tune", "relaax/cli/own_command.py", "relaax/cli/run", "relaax/configuration")
@pytest.mark.timeout(1200)
def test_bad_start_reaches_the_target(tmp_path: Path, short: bool) -> None:
    target = 195 if short else 475
    arguments = [RELAAX, "tune", CARTPOLE, "--trials", "15", "--dir", "study", "--max-steps", "150000"]
    arguments += ["--set", "algorithm.initial_learning_rate=1e-5", "--set", f"run.target_return={target}"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert max(trial.value for trial in trials(tmp_path / "study") if trial.value is not None) >= target, done.stdout
